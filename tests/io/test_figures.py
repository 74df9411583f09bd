"""The palette in every colour vision and in grey, and pictures that are whole, opaque and in one style."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.io import figures

matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib")
pytestmark = pytest.mark.usefixtures("every_figure")

# Linear RGB as a dichromat sees it: Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "trichromat": np.eye(3),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanope": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color: str, vision: np.ndarray = VISIONS["trichromat"]) -> np.ndarray:
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(vision @ linear, 0, 1) / TO_XYZ.sum(1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
def test_colors_differ_in_every_vision(vision: str) -> None:
    for one, two in combinations([*figures.COLORS, "#FFFFFF"], 2):
        distance = np.linalg.norm(lab(one, VISIONS[vision]) - lab(two, VISIONS[vision]))
        assert distance > 11, f"{one} and {two}, {vision}: {distance:.1f}"


def test_bars_of_benchmarks_differ_in_grey() -> None:
    lightness = [lab(color)[0] for color in (figures.BLUE, figures.GREY, "#FFFFFF")]
    assert min(abs(one - two) for one, two in combinations(lightness, 2)) > 20, lightness


def test_series_differ_by_more_than_colour() -> None:
    styles = [figures.line_style(index) for index in range(20)]
    assert len({(style["linestyle"], style["marker"]) for style in styles}) == 20
    assert len({(style["color"], style["linestyle"]) for style in styles}) == 20
    bars = [figures.bar_style(index) for index in range(5)]
    assert len({style["hatch"] for style in bars}) == 5


def test_a_picture_is_opaque_and_in_our_style_whatever_the_user_set(tmp_path: Path) -> None:
    import matplotlib.image

    dark = {"savefig.transparent": True, "savefig.facecolor": "black", "axes.facecolor": "black", "text.color": "white"}
    with matplotlib.rc_context(dark):
        with figures.figure_file(tmp_path / "new" / "figure.png", 4, 3) as figure:
            axes = figure.subplots()
            axes.plot([1, 2], [1, 2], **figures.line_style(0))
            figures.draw_baseline(axes, 1.5, "chance")
            figures.finish_axes(axes, legend=True)
        assert matplotlib.rcParams["text.color"] == "white", "the user's own style is left as it was"
    pixels = matplotlib.image.imread(tmp_path / "new" / "figure.png")
    assert pixels.shape[:2] == (360, 480)
    assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all()
    assert (pixels[0, 0, :3] == 1).all()
    assert (pixels[..., :3] == 1).all(-1).mean() > 0.8
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["figure.png"]


def test_names_with_dollar_signs_are_no_formulas(tmp_path: Path) -> None:
    with figures.figure_file(tmp_path / "figure.svg", 4, 3) as figure:
        axes = figure.subplots()
        axes.plot([1, 2], [1, 2], label=r"run_$\frac$")
        axes.set(title=r"accuracy on $\frac$.tsv")
        figures.finish_axes(axes, legend=True)
    assert (tmp_path / "figure.svg").is_file()


def test_an_error_leaves_the_old_picture(tmp_path: Path) -> None:
    out = tmp_path / "figure.svg"
    out.write_text("old")
    with pytest.raises(ZeroDivisionError), figures.figure_file(out, 4, 3):
        raise ZeroDivisionError
    assert out.read_text() == "old"


@pytest.mark.parametrize("name", ["figure.txt", "figure", ".", "figure.docx"])
def test_a_name_that_is_no_pictures_is_refused(tmp_path: Path, name: str) -> None:
    out = Path(".") if name == "." else tmp_path / name
    with pytest.raises(UserError, match=r"\.png, \.pdf, \.svg"), figures.figure_file(out, 4, 3):
        pytest.fail("the name is checked before anything is drawn")
    assert not list(tmp_path.iterdir())

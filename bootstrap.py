"""Set up fastbert in a clone, and use it: one command, and nothing to fill in.

    python3 bootstrap.py demo      in .venv: install, then pre-train a small BERT and fill in blanks
    python3 bootstrap.py test      in .venv-test: install with everything that tests need, then run them
    python3 bootstrap.py install   in .venv: install only

More words are passed on: `python3 bootstrap.py test -k tokenizer`. What is missing on this machine is named before
anything is installed. Without an NVIDIA driver the CPU build of PyTorch is installed if it can be had, as it is a much
smaller download.
"""

# Any Python 3 must be able to read this file, in order to say that it is too old.
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time

ROOT = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 11)
NEWER = ["python3.14", "python3.13", "python3.12", "python3.11"]  # looked for where python3 is too old
PINNED = ["-c", "constraints.txt"]
# Environment, extra that is installed, gigabytes on the disk with the CPU build of PyTorch and with the CUDA build.
ENVIRONMENTS = {
    "demo": (".venv", "", 2, 8),
    "install": (".venv", "", 2, 8),
    "test": (".venv-test", "[test]", 5, 11),
}


def refuse(problem, cure):
    sys.stdout.flush()
    sys.exit("bootstrap.py: {}: {}".format(problem, cure))


def check_python():
    """Return if this Python is new enough; else run in a newer one, or refuse."""
    if sys.version_info >= OLDEST:
        return
    for name in NEWER:
        newer = shutil.which(name)
        if newer:
            os.execv(newer, [newer, os.path.abspath(__file__)] + sys.argv[1:])
    found = "Python {}.{} is too old".format(*sys.version_info[:2])
    refuse(found, "install Python 3.11 or newer, with venv (Debian, Ubuntu: apt-get install python3.11-venv)")


def check_machine(task):
    """Refuse, in one line with the cure, if something is missing that the installation needs."""
    if platform.system() == "Windows":
        refuse("Windows is not supported", "run this in WSL2, https://learn.microsoft.com/windows/wsl/install")
    version = "{}.{}".format(*sys.version_info[:2])
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        refuse("this Python has no venv", "apt-get install python{}-venv (Debian, Ubuntu)".format(version))
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        refuse("the headers of Python are missing", "apt-get install python{}-dev (Debian, Ubuntu)".format(version))
    named = os.environ.get("CXX", "").strip()
    compilers = [named] if named else ["c++", "g++", "clang++"]
    if not any(compiles_cxx20(shlex.split(compiler)) for compiler in compilers):
        cure = "apt-get install g++ (Debian, Ubuntu), xcode-select --install (macOS), or set CXX to one"
        refuse("no C++20 compiler, g++ >= 11 or clang >= 14 (tried {})".format(", ".join(compilers)), cure)
    folder, _, small, large = ENVIRONMENTS[task]
    if not os.path.exists(os.path.join(ROOT, folder)):
        needed = large if has_nvidia_driver() else small
        free = shutil.disk_usage(ROOT).free / 1e9
        if free < needed:
            refuse("{:.1f} GB are free in {}".format(free, ROOT), "make room for {} GB".format(needed))


def compiles_cxx20(compiler):
    if shutil.which(compiler[0]) is None:
        return False
    probe = os.path.join(ROOT, "csrc", "common", "cxx20_probe.h")
    command = compiler + ["-std=c++20", "-fsyntax-only", "-x", "c++", probe]
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def has_nvidia_driver():
    return os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None


def run(*command):
    """Show and run a command in the root of the clone; end with its exit code if it fails."""
    print("$ " + " ".join(shlex.quote(word) for word in command), flush=True)
    code = subprocess.call(command, cwd=ROOT)
    if code:
        sys.exit(code)


def offered_torch(pip):
    """Return the version of PyTorch that pip would install, or an empty string."""
    command = pip + ["install", "--dry-run", "-q", "--no-deps", "--report", "-", *PINNED, "torch"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    import json

    try:
        [package] = json.loads(done.stdout.decode())["install"]
        return package["metadata"]["version"]
    except (ValueError, KeyError):
        return ""


def install_cpu_torch(folder, pip):
    """Install the CPU build of PyTorch where no NVIDIA driver is found; leave the choice to pip if it cannot be had."""
    installed = subprocess.call(pip + ["show", "-q", "torch"], cwd=ROOT, stderr=subprocess.DEVNULL) == 0
    if installed or platform.system() != "Linux" or has_nvidia_driver() or "+cpu" in offered_torch(pip):
        return
    # uv knows where PyTorch keeps its CPU builds.
    run(*pip, "install", "-q", "uv")
    uv = [os.path.join(folder, "bin", "uv"), "pip", "install", "-q", "--python", os.path.join(folder, "bin", "python")]
    command = uv + ["--torch-backend", "cpu", *PINNED, "torch"]
    print("$ " + " ".join(command), flush=True)
    if subprocess.call(command, cwd=ROOT, env=dict(os.environ, UV_HTTP_TIMEOUT="20", UV_HTTP_RETRIES="1")) != 0:
        print("The CPU build of PyTorch cannot be reached from here: the CUDA build follows, several GB.", flush=True)


def write_requirements(extra, path):
    """Write what fastbert needs, and what the extra adds to it, as a file for pip."""
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    added = project["optional-dependencies"][extra.strip("[]")] if extra else []
    with open(path, "w") as file:
        file.write("\n".join(project["dependencies"] + added) + "\n")


def compile_wheel(pip, target, output):
    """Start to compile fastbert into a folder; return the process, which leads a group of its own."""
    command = pip + ["wheel", "-q", "--no-deps", "-w", target, "."]
    print("$ " + " ".join(shlex.quote(word) for word in command) + " &", flush=True)
    return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def install(task):
    folder, extra, _, _ = ENVIRONMENTS[task]
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(ROOT, python)):
        run(sys.executable, "-m", "venv", folder)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    print("Compiling and downloading, side by side, take minutes.", flush=True)
    with tempfile.TemporaryDirectory() as target, tempfile.TemporaryFile() as output:
        process = compile_wheel(pip, target, output)
        try:
            install_cpu_torch(folder, pip)
            needed = os.path.join(target, "requirements.txt")
            write_requirements(extra, needed)
            run(*pip, "install", "-q", *PINNED, "-r", needed)
            code = process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        if code:
            output.seek(0)
            sys.exit(output.read().decode(errors="replace") + "bootstrap.py: fastbert was not compiled")
        wheels = [os.path.join(target, name) for name in os.listdir(target) if name.endswith(".whl")]
        run(*pip, "install", "-q", "--force-reinstall", "--no-deps", *wheels)


def main():
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(__doc__.strip())
        sys.exit(0)
    if sys.argv[1] not in ENVIRONMENTS:
        print("bootstrap.py: {!r} is unknown: choose one of {}".format(sys.argv[1], ", ".join(ENVIRONMENTS)))
        sys.exit(2)
    check_python()
    task, words = sys.argv[1], sys.argv[2:]
    check_machine(task)
    began = time.monotonic()
    install(task)
    print("Installed in {:.0f} s.".format(time.monotonic() - began), flush=True)
    scripts = os.path.join(ENVIRONMENTS[task][0], "bin")
    if task == "demo":
        run(os.path.join(scripts, "fastbert"), "demo", *words)
        print("\n`source .venv/bin/activate` puts the command `fastbert` on the PATH.")
    elif task == "test":
        run(os.path.join(scripts, "pytest"), *(words or ["-n", "auto"]))
    else:
        print("Now: source {}/bin/activate".format(ENVIRONMENTS[task][0]))


if __name__ == "__main__":
    main()

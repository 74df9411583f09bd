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
TEMPORARY = 1, 4  # gigabytes for downloads, until they are installed


def refuse(problem, cure):
    sys.stdout.flush()
    sys.exit("bootstrap.py: {}: {}".format(problem, cure))


def runs(python):
    return subprocess.call([python, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def check_python():
    """Return if this Python is new enough; else run in a newer one, or refuse."""
    if sys.version_info >= OLDEST:
        return
    for name in NEWER:
        newer = shutil.which(name)
        if newer and runs(newer):  # a shim of a version manager may stand for none
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
    try:
        commands = [shlex.split(compiler) for compiler in compilers]
    except ValueError:
        refuse("CXX={} lacks a closing quotation mark".format(named), "set it to a compiler's command")
    if not any(map(compiles_cxx20, commands)):
        cure = "apt-get install g++ (Debian, Ubuntu), xcode-select --install (macOS), or set CXX to one"
        refuse("no C++20 compiler, g++ >= 11 or clang >= 14 (tried {})".format(", ".join(compilers)), cure)
    folder, _, *gigabytes = ENVIRONMENTS[task]
    if os.path.lexists(os.path.join(ROOT, folder)):
        check_environment(folder)
    else:
        check_disk(ROOT, gigabytes, "make room for {} GB")
        try:
            temporary = tempfile.gettempdir()
        except OSError:
            refuse("no folder for temporary files can be written", "set TMPDIR to one")
        if device(temporary) != device(ROOT):
            check_disk(temporary, TEMPORARY, "make room for {} GB, or set TMPDIR to a folder with as much")


def device(path):
    return os.stat(path).st_dev


def check_disk(folder, gigabytes, cure):
    needed = gigabytes[has_nvidia_driver()]
    free = shutil.disk_usage(folder).free / 1e9
    if free < needed:
        refuse("{:.1f} GB are free in {}".format(free, folder), cure.format(needed))


def check_environment(folder):
    """Refuse an environment from before whose Python is gone or too old."""
    python = os.path.join(ROOT, folder, "bin", "python")
    if not os.path.lexists(python):
        return
    command = [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    try:
        version = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
    except OSError:
        version = ""
    if not version or tuple(map(int, version.split("."))) < OLDEST:
        problem = "holds Python {}, which is too old".format(version) if version else "holds a Python that does not run"
        refuse("{} {}".format(folder, problem), "remove that folder, or move it away")


def compiles_cxx20(compiler):
    if shutil.which(compiler[0]) is None:
        return False
    probe = os.path.join(ROOT, "csrc", "common", "cxx20_probe.h")
    command = compiler + ["-std=c++20", "-fsyntax-only", "-x", "c++", probe]
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def has_nvidia_driver():
    return os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None


def call(command, **options):
    """Run a command in the root of the clone, and return its exit code. Ctrl-C reaches it, too: it ends by itself."""
    process = subprocess.Popen(command, cwd=ROOT, **options)
    interrupted = False
    try:
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
    finally:
        if process.returncode is None:
            process.terminate()
            process.wait()
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def run(*command, **options):
    """Show and run a command in the root of the clone; end with its exit code if it fails."""
    print("$ " + " ".join(shlex.quote(word) for word in command), flush=True)
    code = call(command, **options)
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
    installed = call(pip + ["show", "-q", "torch"], stderr=subprocess.DEVNULL) == 0
    if installed or platform.system() != "Linux" or has_nvidia_driver() or "+cpu" in offered_torch(pip):
        return
    # uv knows where PyTorch keeps its CPU builds.
    run(*pip, "install", "-q", "uv")
    uv = [os.path.join(folder, "bin", "uv"), "pip", "install", "-q", "--python", os.path.join(folder, "bin", "python")]
    command = uv + ["--torch-backend", "cpu", *PINNED, "torch"]
    print("$ " + " ".join(command), flush=True)
    if call(command, env=dict(os.environ, UV_HTTP_TIMEOUT="20", UV_HTTP_RETRIES="1")) != 0:
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
    env = dict(os.environ, TMPDIR=target)  # where nothing is left if it is ended
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def lock_clone():
    """Return the open file that only one bootstrap.py of a clone has locked: all compile into one folder."""
    import fcntl

    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    file = open(os.path.join(ROOT, "build", "bootstrap.lock"), "w")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Waiting for another bootstrap.py in this clone to finish its installation.", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def end_by_signal(number, frame):
    """End as after a failure, so that what was started ends, and temporary files are removed."""
    sys.exit(128 + number)


def install(task):
    folder, extra, _, _ = ENVIRONMENTS[task]
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(ROOT, python)):
        run(sys.executable, "-m", "venv", folder)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    if call(pip + ["--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) != 0:
        run(python, "-m", "ensurepip")  # an environment of uv, or one that was interrupted
    print("Compiling and downloading, side by side, take minutes.", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as target, tempfile.TemporaryFile() as output:
        process = compile_wheel(pip, target, output)
        try:
            install_cpu_torch(folder, pip)
            needed = os.path.join(target, "requirements.txt")
            write_requirements(extra, needed)
            run(*pip, "install", "-q", *PINNED, "-r", needed, env=dict(os.environ, TMPDIR=target))
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
    with lock_clone():
        install(task)
    print("Installed in {:.0f} s.".format(time.monotonic() - began), flush=True)
    scripts = os.path.join(ENVIRONMENTS[task][0], "bin")
    if task == "demo":
        run(os.path.join(scripts, "fastbert"), "demo", *words)
        print("\n`source .venv/bin/activate` puts the command `fastbert` on the PATH.")
    elif task == "test":
        run(os.path.join(scripts, "pytest"), *(words or ["-n", "auto"]))
    else:
        print("Now: source {}".format(shlex.quote(os.path.relpath(os.path.join(ROOT, scripts, "activate")))))


def start():
    """Run `main` so that Ctrl-C, a closed terminal and a request to end also end what was started."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, end_by_signal)
    try:
        main()
    except KeyboardInterrupt:
        print("\nbootstrap.py: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    start()

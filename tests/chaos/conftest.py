"""The scene for all tests of this folder; making it takes a minute or two."""

from __future__ import annotations

import pytest

from tests.chaos.scene import Scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene.make(tmp_path_factory.mktemp("scene") / "scene")

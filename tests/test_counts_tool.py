"""tools/counts.py: what is counted."""

from tools import counts

ENGINE = """\
class Engine(ABC):
    @abstractmethod
    def read(self): ...

    @abstractmethod
    def write(self): ...

    def write_one(self): ...
"""
TWIN = """\
class AsyncShelf:
    async def get(self, key):
        return await self._core.threads.read(partial(self._shelf.get, key))
"""


def test_the_code_is_counted(tmp_path):
    store = tmp_path / "src" / "duly" / "store"
    store.mkdir(parents=True)
    (store.parent / "__pycache__").mkdir()
    (store / "engine.py").write_text(ENGINE)
    (store.parent / "twin.py").write_text(TWIN)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_shelf.py").write_text("def test_shelf():\n    pass\n")

    assert list(counts.figures(tmp_path)) == [
        "src/duly: 2 entries",
        "store/engine.py: 2 abstract methods",
        "awaited methods that only forward: 1",
        "src: 11 lines of Python",
        "tests: 2 lines of Python",
    ]

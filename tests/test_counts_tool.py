"""tools/counts.py: what is counted."""

from tools import counts, forwarders

PACKAGE = counts.ROOT / "src" / "duly"
MAX_ENTRIES = 28
MAX_ENGINE_METHODS = 35
MAX_LINES = 800
WRITTEN_OUT = {
    # They return the async handle.
    "AsyncApp.batch_of", "AsyncJob.children",
    # The module of the sync class imports that of the async one.
    "AsyncApp.cancel_all", "AsyncApp.function", "AsyncApp.held", "AsyncApp.workers",
    "AsyncTx.execute",
    # The return type depends on `dry_run`.
    "AsyncBulk.cancel", "AsyncBulk.reschedule", "AsyncBulk.retry",
    # An AsyncJob has no Job, and would only make one for this.
    "AsyncJob.logs", "AsyncJob.steps",
    # They drive the same operation as their twin.
    "AsyncWorkflowCtx.batch", "AsyncWorkflowCtx.cancel", "AsyncWorkflowCtx.first",
    "AsyncWorkflowCtx.gather", "AsyncWorkflowCtx.now", "AsyncWorkflowCtx.run_many",
    "AsyncWorkflowCtx.send", "AsyncWorkflowCtx.sleep", "AsyncWorkflowCtx.sleep_until",
    "AsyncWorkflowCtx.step",
    "Do.run_async",
    # The sync methods have other names.
    "DatabaseIndex.remove", "DatabaseIndex.upsert",
}  # fmt: skip
"""Public methods that only forward, and cannot be derived in one line."""

ENGINE = """\
class Engine(ABC):
    @abstractmethod
    def read(self): ...

    @abstractmethod
    def write(self): ...

    @property
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
        "src: 12 lines of Python",
        "tests: 2 lines of Python",
    ]


def test_the_floor_plan_stays_small():
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]

    assert len(entries) <= MAX_ENTRIES
    assert f"{len(entries)} entries" in next(counts.figures(counts.ROOT))
    assert counts.abstract_methods(PACKAGE / "store/engine.py") <= MAX_ENGINE_METHODS


def test_no_module_is_too_long_to_read():
    lengths = {path: path.read_text("utf-8").count("\n") for path in PACKAGE.rglob("*.py")}

    assert [path for path, lines in lengths.items() if lines > MAX_LINES] == []


def test_awaited_methods_that_only_forward_are_derived():
    methods = {found.split()[-1] for found in forwarders.find(PACKAGE)}

    assert {method for method in methods if "._" not in method} == WRITTEN_OUT

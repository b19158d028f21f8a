"""tools/forwarders.py: which awaited methods are found to only hand their arguments on."""

from tools import forwarders

SOURCE = '''
class AsyncShelf:
    async def get(self, key, *, by=None):
        """The book."""
        get = partial(self._shelf.get, key, by=by)
        return await self._core.threads.read(get)

    async def put(self, key, **options):
        with self._undisturbed():
            await self._do(lambda shelf: shelf.put(key, **options))

    async def clear(self):
        return await self._core.threads.call(self._shelf.clear)

    take = awaited(Shelf.take)

    async def find(self, key):
        if self._open:
            return await self._core.threads.read(partial(self._shelf.find, key))

    async def pair(self, key):
        return await self._core.threads.read(partial(self._shelf.pair, key, key))

    async def wait_for(self, key):
        await self._core.threads.call(self._shelf.open)
        return await self._core.threads.read(partial(self._shelf.find, key))

    async def _do(self, work):
        return await super()._do(work)
'''


def test_what_only_hands_on_is_found(tmp_path, capsys):
    (tmp_path / "shelf.py").write_text(SOURCE)

    assert forwarders.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shelf.py:3 AsyncShelf.get",
        "shelf.py:8 AsyncShelf.put",
        "shelf.py:12 AsyncShelf.clear",
        "3",
    ]

"""The public names are few, sorted, and all there."""

import duly


def test_the_public_names_are_sorted_and_exist() -> None:
    assert duly.__all__ == sorted(duly.__all__)
    assert [name for name in duly.__all__ if not hasattr(duly, name)] == []


def test_everything_public_in_the_package_is_announced_or_a_module() -> None:
    found = {name for name, value in vars(duly).items() if not name.startswith("_")}
    modules = {name for name in found if type(getattr(duly, name)).__name__ == "module"}
    assert found - modules == set(duly.__all__)

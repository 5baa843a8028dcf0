"""Tests of the list of added models, which several programs may change."""

import contextlib
import threading
from pathlib import Path

import pytest

from diffusers_helper.errors import InputError
from diffusers_helper.models.added import AddedModel, AddedModels, check_new_name, name_for


class Slow(AddedModels):
    """A list that waits after each look until another one has looked, if that may happen."""

    together = threading.Barrier(2, timeout=0.5)

    def _read(self) -> dict[str, AddedModel]:
        found = super()._read()
        with contextlib.suppress(threading.BrokenBarrierError):
            self.together.wait()
        return found


def test_two_programs_that_add_a_model_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "data" / "models.json"
    threads = [
        threading.Thread(target=Slow(file).add, args=(AddedModel(name, name, "demo", {}),)) for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(AddedModels(file).bases()) == ["a", "b"]


def test_a_list_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder for a list of models"):
        AddedModels().add(AddedModel("a", "a", "demo", {}))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        AddedModels(tmp_path / "file" / "models.json").add(AddedModel("a", "a", "demo", {}))


def test_names_that_are_made_of_files_can_be_used() -> None:
    taken = ["mine", "mine-2"]
    for path in ("Mine", "ähm.weights", "..", "x" * 99, "-a-", "名前"):
        name = name_for(path, taken)
        check_new_name(name, taken)
    assert name_for("dir/Mine", taken) == "mine-3"
    with pytest.raises(InputError, match="name is 'mine'; expected a new name"):
        check_new_name("mine", taken)

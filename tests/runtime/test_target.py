"""Loading of targets: files, modules, packages and scripts; classes, instances and factories; and every way to fail."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from compilebisect.errors import CannotTestError, TargetError
from compilebisect.runtime.target import load_target

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=4, *, bias=True):
        super().__init__()
        self.layer = nn.Linear(2, hidden, bias=bias)

    def forward(self, x):
        return self.layer(x)
"""


pytestmark = pytest.mark.usefixtures("clean_imports")


def write(folder: Path, /, **files: str) -> None:
    """Write Python files into a folder, named without `.py`."""
    for name, text in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)


def error_of(target: object, init: dict[str, object] | None = None) -> TargetError:
    with pytest.raises(TargetError) as caught:
        load_target(str(target), init or {})
    assert caught.value.exit_status == 2
    return caught.value


# what a target may be


def test_class_is_built_with_init(tmp_path: Path) -> None:
    write(tmp_path, model=NET)
    loaded = load_target(f"{tmp_path}/model.py:Net", {"hidden": 7, "bias": False})
    assert isinstance(loaded.model, nn.Module)
    assert loaded.model.layer.weight.shape == (7, 2)
    assert (loaded.name, loaded.root_dir) == ("Net", str(tmp_path))


def test_instance_factory_and_dotted_name(tmp_path: Path) -> None:
    more = "net = Net(3)\ndef build(n=5): return Net(n)\n"
    more += "class Zoo:\n    @staticmethod\n    def big(): return Net(9)\n"
    write(tmp_path, model=NET + more)
    at = f"{tmp_path}/model.py"
    assert load_target(f"{at}:net", {}).model.layer.out_features == 3
    assert load_target(f"{at}:build", {"n": 6}).model.layer.out_features == 6
    assert load_target(f"{at}:Zoo.big", {}).model.layer.out_features == 9
    assert load_target(f"{at}:net.layer", {}).model.out_features == 3


def test_factory_that_compiles_its_model_gives_the_model_itself(tmp_path: Path) -> None:
    write(tmp_path, model=NET + "def build():\n    return torch.compile(Net(), backend='eager')\n")
    assert type(load_target(f"{tmp_path}/model.py:build", {}).model).__name__ == "Net"


def test_path_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, model=NET)
    monkeypatch.chdir(tmp_path)
    assert load_target("model.py:Net", {}).root_dir == str(tmp_path)


def test_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "pkg_a", __init__="", net=NET)
    monkeypatch.chdir(tmp_path)
    loaded = load_target("pkg_a.net:Net", {})
    assert type(loaded.model).__module__ == "pkg_a.net"
    assert loaded.root_dir == str(tmp_path)


def test_installed_module() -> None:
    assert isinstance(load_target("torch.nn:Identity", {}).model, nn.Identity)


# how a file is imported


def test_siblings_can_be_imported(tmp_path: Path) -> None:
    write(
        tmp_path,
        sibling_part="WIDTH = 11\n",
        model=NET + "import sibling_part\ndef build(): return Net(sibling_part.WIDTH)\n",
    )
    assert load_target(f"{tmp_path}/model.py:build", {}).model.layer.out_features == 11


def test_lazily_imported_sibling_is_found_later(tmp_path: Path) -> None:
    body = "        import late_part\n        return late_part.VALUE\n"
    net = "from torch import nn\nclass Net(nn.Module):\n    def forward(self):\n" + body
    write(tmp_path, late_part="VALUE = 3\n", model=net)
    assert load_target(f"{tmp_path}/model.py:Net", {}).model() == 3


def test_file_in_a_package_has_relative_imports_and_its_real_name(tmp_path: Path) -> None:
    write(tmp_path / "pkg_b", __init__="", parts="WIDTH = 12\n")
    imports = "from ..parts import WIDTH\nfrom pkg_b.parts import WIDTH as SAME\n"
    write(tmp_path / "pkg_b" / "nets", __init__="", model=NET + imports + "def build(): return Net(WIDTH)\n")
    loaded = load_target(f"{tmp_path}/pkg_b/nets/model.py:build", {})
    assert loaded.model.layer.out_features == 12
    assert type(loaded.model).__module__ == "pkg_b.nets.model"
    assert loaded.root_dir == str(tmp_path)


def test_package_that_is_called_like_an_installed_one_keeps_its_relative_imports(tmp_path: Path) -> None:
    net = NET + "from .parts import WIDTH\ndef build(): return Net(WIDTH)\n"
    write(tmp_path / "json", __init__="", parts="WIDTH = 13\n", net=net)
    loaded = load_target(f"{tmp_path}/json/net.py:build", {})
    assert loaded.model.layer.out_features == 13
    import json

    assert json.loads("1") == 1
    assert type(loaded.model).__module__ != "json.net"


@pytest.mark.parametrize("name", ["types", "numpy", "my-model"])
def test_file_name_that_is_taken_shadows_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(NET)
    loaded = load_target(f"{tmp_path}/{name}.py:Net", {})
    module = type(loaded.model).__module__
    assert module != name
    assert module in sys.modules
    assert str(tmp_path) != sys.path[0]


def test_file_that_is_loaded_twice_is_one_module(tmp_path: Path) -> None:
    write(tmp_path, model=NET)
    first = load_target(f"{tmp_path}/model.py:Net", {})
    assert type(first.model) is type(load_target(f"{tmp_path}/../{tmp_path.name}/model.py:Net", {}).model)


def test_two_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path / "a", model=NET)
    write(tmp_path / "b", model=NET.replace("Net", "Other"))
    first = load_target(f"{tmp_path}/a/model.py:Net", {})
    second = load_target(f"{tmp_path}/b/model.py:Other", {})
    assert type(first.model).__name__ == "Net"
    assert type(second.model).__name__ == "Other"
    assert type(first.model).__module__ == "model"


@pytest.mark.parametrize("name", ["model", "types"])
def test_objects_can_be_unpickled_by_another_process_that_loaded_the_target(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(NET)
    target = f"{tmp_path}/{name}.py:Net"
    data = pickle.dumps(load_target(target, {}).model)
    (tmp_path / "model.pickle").write_bytes(data)
    code = (
        "import pickle, sys; from compilebisect.runtime.target import load_target; load_target(sys.argv[1], {});"
        "print(type(pickle.load(open(sys.argv[2], 'rb'))).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, target, str(tmp_path / "model.pickle")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "Net", done.stderr


def test_script_runs_its_top_level_code_without_our_arguments(tmp_path: Path) -> None:
    write(tmp_path, model=NET + "import sys\nARGS = list(sys.argv)\nnet = Net()\nprint(net(torch.ones(1, 2)).shape)\n")
    before = list(sys.argv)
    load_target(f"{tmp_path}/model.py:net", {})
    assert [f"{tmp_path}/model.py"] == sys.modules["model"].ARGS
    assert sys.argv == before


def test_nothing_is_written_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path, sibling_two="", model="import sibling_two\n" + NET)
    load_target(f"{tmp_path}/model.py:Net", {})
    assert sorted(os.listdir(tmp_path)) == ["model.py", "sibling_two.py"]


# faults


def test_unknown_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, model=NET)
    assert "did you mean 'model.py'?" in error_of(f"{tmp_path}/modle.py:Net").what
    assert "does not exist either" in error_of(f"{tmp_path}/none/model.py:Net").fix
    assert "is a folder" in error_of(f"{tmp_path}/:Net").what


def test_unknown_name_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, model=NET)
    error = error_of(f"{tmp_path}/model.py:Nett")
    assert "there is no 'Nett'" in error.what
    assert "did you mean 'Net'?" in error.what
    assert error.fix == "There are: 'Net'."
    assert "in 'Net'" in error_of(f"{tmp_path}/model.py:Net.forwrd").what


def test_target_without_a_name_tells_what_the_file_defines(tmp_path: Path) -> None:
    write(tmp_path, model=NET)
    assert "'Net'" in error_of(f"{tmp_path}/model.py").fix
    assert "'Net'" in error_of(f"{tmp_path}/model.py:").fix
    assert "file.py:Name" in error_of("torch.nn").fix
    assert "names no file" in error_of(":Net").what


@pytest.mark.parametrize("source", ["no_such_package_at_all", "no_such_package_at_all.model", "torch.no_such_module"])
def test_unknown_module(source: str) -> None:
    error = error_of(f"{source}:Net")
    assert "there is no module" in error.what
    assert error.detail == ""


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("x = 3", "a int"),
        ("x = None", "None"),
        ("class x: pass", "the class x"),
        ("import os as x", "the Python module os"),
    ],
)
def test_what_is_no_module_is_described(tmp_path: Path, text: str, described: str) -> None:
    write(tmp_path, model=text + "\n")
    assert f"is {described}, not an nn.Module" in error_of(f"{tmp_path}/model.py:x").what


def test_factory_must_return_a_module(tmp_path: Path) -> None:
    write(tmp_path, model="def build(): return {}\n")
    assert "returns a dict, not an nn.Module" in error_of(f"{tmp_path}/model.py:build").what


def test_init_names_the_parameters_that_exist(tmp_path: Path) -> None:
    write(tmp_path, model=NET + "net = Net()\n")
    error = error_of(f"{tmp_path}/model.py:Net", {"hiden": 3})
    assert "did you mean 'hidden'?" in error.what
    assert error.fix == "It takes 'hidden', 'bias'."
    assert "takes no --init" in error_of(f"{tmp_path}/model.py:net", {"hidden": 3}).what


def test_class_that_needs_arguments_names_them() -> None:
    error = error_of("torch.nn:Linear", {"bias": True})
    assert "needs 'in_features', 'out_features'" in error.what
    assert '--init \'{"in_features": ..., "out_features": ...}\'' in error.fix


@pytest.mark.parametrize(
    ("text", "what", "detail"),
    [
        ("def f(:\n", "SyntaxError", "def f(:"),
        ("import no_such_thing\n", "No module named 'no_such_thing'", "import no_such_thing"),
        ("import torch\ntorch.zeros(2) @ torch.zeros(3)\n", "RuntimeError", "torch.zeros(2) @ torch.zeros(3)"),
        ("from . import parts\n", "relative import", "from . import parts"),
        ("raise SystemExit(3)\n", "ends the program with 3", "raise SystemExit(3)"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('f')\np.parse_args()\n",
            "ends the program",
            "parse_args",
        ),
    ],
)
def test_file_that_cannot_be_imported_shows_the_users_own_frames(
    tmp_path: Path, text: str, what: str, detail: str
) -> None:
    write(tmp_path, model=text)
    error = error_of(f"{tmp_path}/model.py:Net")
    assert what in error.what
    assert detail in error.detail
    assert "model.py" in error.detail
    assert "compilebisect/runtime" not in error.detail
    assert "importlib" not in error.detail
    assert "model" not in sys.modules


def test_script_that_ends_the_program_is_told_to_guard_its_main_part(tmp_path: Path) -> None:
    write(tmp_path, model="import sys\nsys.exit()\n")
    error = error_of(f"{tmp_path}/model.py:Net")
    assert "ends the program while it is imported" in error.what
    assert "__main__" in error.fix


@pytest.mark.parametrize("call", ["torch.zeros(2) @ torch.zeros(3)", "raise SystemExit(1)", "{}['a']"])
def test_constructor_that_fails_is_the_models_fault(tmp_path: Path, call: str) -> None:
    write(
        tmp_path,
        model=f"import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        {call}\n",
    )
    with pytest.raises(CannotTestError) as caught:
        load_target(f"{tmp_path}/model.py:Net", {})
    assert caught.value.exit_status == 125
    assert call in caught.value.detail
    assert "compilebisect/runtime" not in caught.value.detail


def test_random_state_and_training_flag_are_left_to_the_caller(tmp_path: Path) -> None:
    write(tmp_path, model=NET)
    torch.manual_seed(3)
    expected = nn.Linear(2, 4).weight
    torch.manual_seed(3)
    model = load_target(f"{tmp_path}/model.py:Net", {}).model
    assert torch.equal(expected, model.layer.weight)
    assert model.training

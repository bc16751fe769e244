"""Parsing of input specs: the forms, the leaves, and one clear error with a JSON path for each fault."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core.input_spec import (
    CallLeaf,
    ConstantLeaf,
    DictLeaf,
    DimLeaf,
    DimOptions,
    FileLeaf,
    SequenceLeaf,
    TensorLeaf,
    parse_spec,
)
from compilebisect.core.messages import ProbeOrder
from compilebisect.errors import SpecError


def leaf_of(raw: Any, dims: Any = None) -> Any:
    return parse_spec({"kwargs": {"x": raw}, "dims": dims or {}}).kwargs["x"]


def error_of(raw: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(raw)
    assert caught.value.exit_status == 2
    assert caught.value.fix, "every error says how to mend it"
    return caught.value


def leaf_error(raw: Any, dims: Any = None) -> SpecError:
    return error_of({"kwargs": {"x": raw}, "dims": dims or {}})


# forms


def test_object_without_sections_is_the_keyword_arguments() -> None:
    spec = parse_spec({"x": [8, 3, 32, 32]})
    assert spec.args == ()
    assert spec.kwargs == {"x": TensorLeaf(where="x", shape=(8, 3, 32, 32))}
    assert spec.train is None


def test_list_is_the_positional_arguments() -> None:
    spec = parse_spec([[2, 3], {"value": None}])
    assert [type(leaf) for leaf in spec.args] == [TensorLeaf, ConstantLeaf]
    assert [leaf.where for leaf in spec.args] == ["[0]", "[1]"]


@pytest.mark.parametrize("raw", [{}, [], {"args": []}, {"kwargs": {}}, {"dims": {}}])
def test_model_without_inputs_has_an_empty_spec(raw: Any) -> None:
    spec = parse_spec(raw)
    assert (spec.args, spec.kwargs, spec.variant_count) == ((), {}, 1)


def test_long_form_keeps_paths_for_messages() -> None:
    spec = parse_spec({"args": [[1]], "kwargs": {"mask": {"list": [[2]]}}})
    assert spec.args[0].where == "args[0]"
    assert spec.kwargs["mask"].items[0].where == "kwargs.mask.list[0]"


def test_parameter_called_train_is_told_from_the_section() -> None:
    assert parse_spec({"x": [1], "train": {"value": True}}).kwargs["train"] == ConstantLeaf(where="train", value=True)
    section = parse_spec({"kwargs": {"x": [1]}, "train": {"loss": "mean"}})
    assert section.train is not None
    assert section.train.loss == "mean"
    error = error_of({"x": [1], "train": {"loss": "mean"}})
    assert error.where == "x"
    assert "move it into 'kwargs'" in error.fix


@pytest.mark.parametrize("name", ["shape", "value", "list", "file", "call"])
def test_parameters_may_be_called_like_keys_of_leaves(name: str) -> None:
    assert parse_spec({name: [2, 3]}).kwargs[name] == TensorLeaf(where=name, shape=(2, 3))


@pytest.mark.parametrize(
    ("raw", "where", "what"),
    [
        (None, "input spec", "not null"),
        (3, "input spec", "not the number 3"),
        ("x", "input spec", "not the string 'x'"),
        (True, "input spec", "not the bool true"),
        ([2, 3], "input spec", "a list of sizes is one tensor"),
        ({"args": [2, "seq"]}, "args", "a list of sizes is one tensor"),
        ({"args": {"x": [1]}}, "args", "must be a list of leaves"),
        ({"kwargs": [[1]]}, "kwargs", "must be an object of leaves"),
        ({"kwargs": {}, "dim": {}}, "dim", "unknown key 'dim'; did you mean 'dims'?"),
        ({"arg": [[1]], "kwargs": {}}, "arg", "unknown key 'arg'; did you mean 'args'?"),
        ({"x": [1, "n"], "dims": {"n": [1]}}, "x", "unknown key 'x'"),
        ({"shape": [2], "dtype": "int64"}, "input spec", "a single leaf"),
        ({"kwargs": {}, "train": True}, "train", "must be an object"),
        ({"kwargs": {}, "tolerances": [1e-3]}, "tolerances", "must be an object"),
        ({"kwargs": {}, "tolerances": {"a": "loose"}}, "tolerances.a", "must be a number"),
        ({"kwargs": {}, "tolerances": {"a": [1e-3, -1]}}, "tolerances.a", "none of them negative"),
        ({"kwargs": {}, "tolerances": {"a": [1, 2, 3]}}, "tolerances.a", "[rtol, atol]"),
        ({"kwargs": {}, "train": {"los": "sum"}}, "train.los", "unknown key 'los'; did you mean 'loss'?"),
        ({"kwargs": {}, "train": {"loss": 3}}, "train.loss", "must be a string"),
        ({"kwargs": {}, "train": {"loss": "loss.txt:f"}}, "train.loss", "does not name a function"),
    ],
)
def test_wrong_form_is_named(raw: Any, where: str, what: str) -> None:
    error = error_of(raw)
    assert error.where == where
    assert what in error.what


# dims


def test_variant_takes_the_kth_value_and_a_shorter_list_repeats_its_last() -> None:
    spec = parse_spec(
        {"args": [["a", "b", "c", "d"]], "dims": {"a": [2, 4], "b": [16, 32, 64], "c": 3, "d": {"values": [1]}}}
    )
    assert spec.variant_count == 3
    assert [spec.dims_of_variant(k) for k in range(3)] == [
        {"a": 2, "b": 16, "c": 3, "d": 1},
        {"a": 4, "b": 32, "c": 3, "d": 1},
        {"a": 4, "b": 64, "c": 3, "d": 1},
    ]


@pytest.mark.parametrize(
    ("dims", "where", "what"),
    [
        ([2], "dims", "must be an object"),
        ({"n": []}, "dims.n", "no values"),
        ({"n": "2"}, "dims.n", "not the string '2'"),
        ({"n": True}, "dims.n", "not the bool true"),
        ({"n": [2, -1]}, "dims.n[1]", "not -1"),
        ({"n": [2.0]}, "dims.n[0]", "not the number 2.0"),
        ({"n": {"values": [1, None]}}, "dims.n.values[1]", "not null"),
        ({"n": {"vals": [1]}}, "dims.n.vals", "did you mean 'values'?"),
        ({"n": {}}, "dims.n", "key 'values' is missing"),
        ({"n": {"values": 3}}, "dims.n.values", "must be a list"),
        ({"n": {"values": [4], "dynamic": 1}}, "dims.n.dynamic", "must be true or false, not the number 1"),
        ({"n": {"values": [4], "min": -1}}, "dims.n.min", "not -1"),
        ({"n": {"values": [4], "min": 8, "max": 2}}, "dims.n.min", "8 is above max, which is 2"),
        ({"n": {"values": [4, 9], "max": 8}}, "dims.n.values[1]", "9 is not between min and max"),
        ({"n": {"values": [4], "dynamic": False, "max": 8}}, "dims.n.max", "has no bounds"),
        ({"": [1]}, 'dims[""]', "needs a name"),
        ({"a b": [-1]}, 'dims["a b"][0]', "not -1"),
    ],
)
def test_wrong_dims_are_named(dims: Any, where: str, what: str) -> None:
    error = error_of({"kwargs": {}, "dims": dims})
    assert error.where == where
    assert what in error.what


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, max_size=4)), st.integers(0, 5))
def test_every_variant_gives_every_dim_one_of_its_values(dims: dict[str, list[int]], variant: int) -> None:
    spec = parse_spec({"kwargs": {}, "dims": dims})
    sizes = spec.dims_of_variant(variant)
    assert sizes.keys() == dims.keys()
    assert all(sizes[name] in values for name, values in dims.items())
    last = spec.variant_count - 1
    assert spec.dims_of_variant(max(variant, last)) == {name: values[-1] for name, values in dims.items()}


# leaves


@pytest.mark.parametrize("value", [3, 2.5, "text", True, None, [1, "a"], {"shape": [2]}])
def test_constants_are_kept_as_they_are(value: Any) -> None:
    assert leaf_of({"value": value}) == ConstantLeaf(where="kwargs.x", value=value)


def test_containers_nest() -> None:
    leaf = leaf_of({"dict": {"a": {"list": [[1], {"tuple": []}]}}})
    assert isinstance(leaf, DictLeaf)
    inner = leaf.items["a"]
    assert isinstance(inner, SequenceLeaf)
    assert inner.items == (
        TensorLeaf(where="kwargs.x.dict.a.list[0]", shape=(1,)),
        SequenceLeaf(where="kwargs.x.dict.a.list[1]", items=(), is_tuple=True),
    )


def test_dims_may_stand_for_numbers() -> None:
    assert leaf_of({"dim": "n"}, {"n": [3]}) == DimLeaf(where="kwargs.x", dim="n")


def test_files_and_calls() -> None:
    assert leaf_of({"file": "a.pt", "key": "k"}) == FileLeaf(where="kwargs.x", file="a.pt", key="k")
    call = leaf_of({"call": "dir/make.py:Maker.cache", "kwargs": {"n": 3, "seq": {"dim": "n"}}}, {"n": [3]})
    assert isinstance(call, CallLeaf)
    assert (call.file, call.function) == ("dir/make.py", "Maker.cache")
    assert call.kwargs == {"n": 3, "seq": DimLeaf(where="kwargs.x.kwargs.seq", dim="n")}


@pytest.mark.parametrize(
    ("raw", "init", "dtype"),
    [
        ([2], "randn", None),
        ({"shape": [2], "dtype": "float16"}, "randn", "float16"),
        ({"shape": [2], "dtype": "int64"}, "randint", "int64"),
        ({"shape": [2], "dtype": "bool"}, "randint", "bool"),
        ({"shape": [2], "dtype": "torch.long"}, "randint", "int64"),
        ({"shape": [2], "init": "ones"}, "ones", None),
        ({"shape": [2], "init": "randint"}, "randint", "int64"),
        ({"shape": [2], "init": "arange"}, "arange", "int64"),
        ({"shape": [2], "init": "full", "value": True}, "full", "bool"),
        ({"shape": [2], "init": "full", "value": 1}, "full", None),
    ],
)
def test_init_and_dtype_have_defaults_that_fit_each_other(raw: Any, init: str, dtype: str | None) -> None:
    leaf = leaf_of(raw)
    assert (leaf.init, leaf.dtype) == (init, dtype)


def test_random_integers_run_from_0_to_1_unless_told_otherwise() -> None:
    leaf = leaf_of({"shape": [2], "dtype": "int64"})
    assert (leaf.low, leaf.high) == (0, 2)
    assert leaf_of({"shape": [2], "dtype": "int64", "high": "n"}, {"n": [5]}).high == "n"


def test_special_floats_are_written_as_strings() -> None:
    assert leaf_of({"shape": [2], "init": "full", "value": "-inf"}).value == float("-inf")


@pytest.mark.parametrize(
    ("raw", "where", "what"),
    [
        (3, "", "not the number 3"),
        ("seq", "", "not the string 'seq'"),
        (None, "", "not null"),
        (True, "", "not the bool true"),
        ([2, -1], "[1]", "a size must be a natural number, not -1"),
        ([2.0], "[0]", "not the number 2.0"),
        ([True], "[0]", "not the bool true"),
        ([2, None], "[1]", "not null"),
        ([2**63], "[0]", "greater than any tensor"),
        ([[2], [3]], "[0]", "a shape holds sizes, not a list"),
        (["seqq"], "[0]", "unknown dim 'seqq'; did you mean 'seq'?"),
        ({}, "", "an empty object is no leaf"),
        ({"a": [2], "b": [3]}, "", "no leaf"),
        ({"shap": [2]}, ".shap", "unknown key 'shap'; did you mean 'shape'?"),
        ({"dtype": "int64"}, "", "key 'shape' is missing"),
        ({"dtype": "int64", "init": "ones"}, "", "key 'shape' is missing"),
        ({"shape": [2], "dtpye": "int64"}, ".dtpye", "unknown key 'dtpye'; did you mean 'dtype'?"),
        ({"shape": 2}, ".shape", "must be a list of sizes"),
        ({"shape": [2], "list": []}, "", "exclude each other"),
        ({"file": "a.pt", "call": "a.py:f"}, "", "exclude each other"),
        ({"value": 3, "dtype": "int64"}, ".dtype", "unknown key 'dtype'"),
        ({"list": {"a": [1]}}, ".list", "must be a list of leaves"),
        ({"list": [[1], 3]}, ".list[1]", "not the number 3"),
        ({"dict": [[1]]}, ".dict", "must be an object of leaves"),
        ({"dict": {"a": {"tuple": [[-1]]}}}, ".dict.a.tuple[0][0]", "not -1"),
        ({"dim": "sq"}, ".dim", "unknown dim 'sq'; did you mean 'seq'?"),
        ({"dim": 3}, ".dim", "must be a string"),
        ({"file": "a.csv"}, ".file", "cannot read 'a.csv'"),
        ({"file": ""}, ".file", "empty"),
        ({"file": "a.npy", "key": "k"}, ".key", "has no keys"),
        ({"call": "f"}, ".call", "does not name a function"),
        ({"call": "a.txt:f"}, ".call", "does not name a function"),
        ({"call": "a.py:f", "kwargs": [1]}, ".kwargs", "must be an object"),
        ({"call": "a.py:f", "args": []}, ".args", "unknown key 'args'"),
    ],
)
def test_wrong_leaf_is_named(raw: Any, where: str, what: str) -> None:
    error = leaf_error(raw, {"seq": [2]})
    assert error.where == "kwargs.x" + where
    assert what in error.what


@pytest.mark.parametrize(
    ("more", "key", "what"),
    [
        ({"dtype": "int46"}, "dtype", "unknown dtype 'int46'; did you mean 'int64'?"),
        ({"dtype": 3}, "dtype", "must be a string"),
        ({"init": "zeroes"}, "init", "unknown init 'zeroes'; did you mean 'zeros'?"),
        ({"init": "randn", "dtype": "int64"}, "init", "needs a floating dtype"),
        ({"init": "randint", "dtype": "complex64"}, "init", "cannot make 'complex64'"),
        ({"shape": [2, 2, 2], "init": "eye"}, "init", "needs 2 dimensions, not 3"),
        ({"init": "full"}, "", "init 'full' needs a value"),
        ({"value": 3}, "value", "'value' belongs to init 'full'"),
        ({"init": "full", "value": "many"}, "value", "must be a number"),
        ({"init": "full", "value": [1]}, "value", "must be a number"),
        ({"init": "full", "value": 0.5, "dtype": "int64"}, "value", "0.5 is no integer"),
        ({"init": "full", "value": True, "dtype": "int64"}, "value", "not the bool true"),
        ({"init": "full", "value": True, "dtype": "float32"}, "value", "not the bool true"),
        ({"init": "full", "value": 2, "dtype": "bool"}, "value", "2 is no bool"),
        ({"init": "full", "value": 256, "dtype": "uint8"}, "value", "256 does not fit 'uint8'"),
        ({"init": "full", "value": "inf", "dtype": "int64"}, "value", "must be a number"),
        ({"high": 3}, "high", "'high' belongs to init 'randint'"),
        ({"init": "zeros", "low": 3}, "low", "'low' belongs to init 'randint'"),
        ({"dtype": "int64", "high": 2.5}, "high", "must be an integer"),
        ({"dtype": "int64", "high": True}, "high", "must be an integer"),
        ({"dtype": "int64", "high": "nn"}, "high", "unknown dim 'nn'"),
        ({"dtype": "int64", "low": 5, "high": 5}, "low", "'low' 5 is not below 'high' 5"),
        ({"dtype": "int64", "high": 0}, "high", "not below"),
        ({"dtype": "int64", "low": 2}, "low", "not below"),
        ({"dtype": "int64", "low": 3, "high": "n"}, "low", "'low' 3 is not below 'high' 2"),
        ({"dtype": "int8", "high": 129}, "high", "129 does not fit 'int8'"),
        ({"dtype": "uint8", "low": -1}, "low", "-1 does not fit 'uint8'"),
        ({"dtype": "bool", "high": 3}, "high", "3 does not fit 'bool'"),
        ({"dtype": "int64", "high": 2**63}, "high", "does not fit 'int64'"),
        ({"requires_grad": 1}, "requires_grad", "must be true or false"),
        ({"requires_grad": True, "dtype": "int64"}, "requires_grad", "have no gradient"),
        ({"memory_format": "channels_lst"}, "memory_format", "did you mean 'channels_last'?"),
        ({"memory_format": "channels_last"}, "memory_format", "needs 4 dimensions, not 2"),
        ({"shape": [1, 1, 1, 1], "memory_format": "channels_last", "stride": [1, 1, 1, 1]}, "memory_format", "exclude"),
        ({"stride": [1]}, "stride", "1 strides for 2 dimensions"),
        ({"stride": [1, -1]}, "stride[1]", "not -1"),
        ({"device": "cdua"}, "device", "did you mean 'cuda'?"),
        ({"device": "cuda:x"}, "device", "unknown device 'cuda:x'"),
        ({"device": "cuda:"}, "device", "unknown device 'cuda:'"),
        ({"device": 0}, "device", "must be a string"),
    ],
)
def test_wrong_tensor_is_named(more: dict[str, Any], key: str, what: str) -> None:
    error = leaf_error({"shape": [2, 2], **more}, {"n": [4, 2]})
    assert error.where == (f"kwargs.x.{key}" if key else "kwargs.x")
    assert what in error.what


def test_greatest_bounds_of_a_dtype_are_allowed() -> None:
    assert leaf_of({"shape": [2], "dtype": "int8", "low": -128, "high": 128}).high == 128
    assert leaf_of({"shape": [2], "dtype": "uint8", "high": 256}).high == 256
    assert leaf_of({"shape": [2], "init": "full", "value": 2**64 - 1, "dtype": "uint64"}).value == 2**64 - 1


def test_message_has_path_fault_and_nearest_match_on_one_line() -> None:
    error = error_of({"kwargs": {"mask": {"shape": [2], "dtype": "int46"}}})
    assert str(error).splitlines()[0] == "kwargs.mask.dtype: unknown dtype 'int46'; did you mean 'int64'?"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["shape", "n", "int64"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["args", "kwargs", "dims", "shape", "dtype", "init", "high", "value", "list", "dict", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_parsed_or_refused_with_a_path(raw: Any) -> None:
    try:
        spec = parse_spec(raw)
    except SpecError as error:
        assert error.where
        assert error.fix
    else:
        assert spec.variant_count >= 1


def test_tolerances_are_kept_by_glob_in_their_order() -> None:
    spec = parse_spec({"args": [], "tolerances": {"encoder.*": [1e-3, 1e-5], "*": 0.01}})
    assert list(spec.tolerances.items()) == [("encoder.*", (1e-3, 1e-5)), ("*", (0.01, 0.01))]


def test_the_first_glob_that_fits_a_module_counts_and_the_option_overrides_all() -> None:
    order = ProbeOrder(path="", folder="", calls=(), tolerances={"encoder.*": (1e-3, 1e-5), "enc*": (0.1, 0.1)})
    assert [order.tolerance_for(path) for path in ("encoder.0", "encoder", "")] == [(1e-3, 1e-5), (0.1, 0.1), None]
    assert msgspec.structs.replace(order, tolerance=(1.0, 0.0)).tolerance_for("encoder.0") == (1.0, 0.0)


def test_what_a_spec_says_of_a_dim_besides_its_values():
    dims = {"a": [2, 4], "b": {"values": [16, 32], "dynamic": True, "min": 2, "max": 4096}, "c": {"values": [1]}}
    spec = parse_spec({"args": [["a", "b", "c"]], "dims": dims})
    assert spec.dims == {"a": (2, 4), "b": (16, 32), "c": (1,)}
    assert spec.dim_options == {"b": DimOptions(dynamic=True, min=2, max=4096)}

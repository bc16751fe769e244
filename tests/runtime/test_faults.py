from __future__ import annotations

from compilebisect.runtime.faults import fault_from_error


def test_a_wrong_fake_kernel_is_named_with_what_tells_more() -> None:
    # As torch 2.13's assert_size_stride says it.
    text = (
        "expected size 4==4, stride 8==16 at dim=0\n"
        "Error in op: torch.ops.mine.pairs.default\n"
        "This error most often comes from a incorrect fake (aka meta) kernel for a custom op."
    )
    assert "torch.library.opcheck(torch.ops.mine.pairs.default" in fault_from_error(AssertionError(text)).hint
    assert fault_from_error(AssertionError("expected size 4==4")).hint == ""

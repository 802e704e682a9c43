"""Generated kernels as C++ that ends the process at undefined behaviour: shifts, overflows of
signed integers, addresses that are not aligned, indices beyond the ends of arrays in registers and
in shared memory."""

import pytest
from codegen.cases import all_cases
from codegen.on_cpu import Library, generated, kernels_in
from runtime.forked import in_child

FLAGS = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
CASES = all_cases()
OPS = sorted({case.node.op.name for case in CASES})


def ran(cases, edit=lambda text: text):
    """How many cases ran through, in a process of their own, which ends at what is undefined."""
    prepared = [(arrays, generated(case.node, arrays)) for case in cases
                for arrays in [case.arrays()]]  # fmt: skip
    library = Library(kernels_in([found for _, found in prepared]), edit, FLAGS)

    def child():
        for arrays, found in prepared:
            if len(found.kernels) == len(found.calls):  # none is a product of a library
                library.run(found, arrays)
        return len(prepared)

    return in_child(child)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_no_kernel_does_what_is_undefined(name):
    cases = [c for c in CASES if c.node.op.name == name and "float16" not in c.name.split()]
    assert ran(cases) == len(cases)


@pytest.mark.slow
def test_undefined_behavior_is_found():
    """An index beyond the end of an array of registers."""
    (case,) = (c for c in CASES if c.name == "attention long (1, 1, 130, 16) bfloat16 dense")
    assert ran([case]) == 1
    with pytest.raises(EOFError):
        ran([case], lambda text: text.replace("i < 2u; ++i", "i < 3u; ++i"))

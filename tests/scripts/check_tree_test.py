"""Each rule of scripts/check_tree.py refuses what breaks it, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_tree.py"

CMAKE = """\
# add_part(ghost DEPENDS core)
add_part(core       DEPENDS)
add_part(core/ops   DEPENDS core)
add_part(layers     DEPENDS core
                    core/ops)
"""
PARTS = """\
set(FERRY_LIBRARIES_core_ops ferry_openblas)
list(APPEND FERRY_LIBRARIES_layers ferry_fmt)
"""
TENSOR = "#pragma once\n\n#include <vector>\n"


class CheckTree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("CMakeLists.txt", CMAKE)
        self.write("scripts/cmake/FerryParts.cmake", PARTS)
        self.write("core/tensor.h", TENSOR)
        self.write("core/ops/gemm.h", '#pragma once\n\n#include "core/tensor.h"\n')

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def problems(self):
        """The lines that the script prints, without its summary."""
        done = subprocess.run([sys.executable, str(SCRIPT), str(self.root)], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        self.assertEqual(done.returncode, 1 if len(lines) > 1 else 0)
        return lines[:-1]

    def expect_clean(self):
        self.assertEqual(self.problems(), [])

    def expect_problem(self, start, *words):
        found = self.problems()
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(start + ": "), found[0])
        for word in words:
            self.assertIn(word, found[0])

    def test_clean_tree_has_no_problems(self):
        self.write("layers/linear.h", '#pragma once\n#include "core/ops/gemm.h"\n#include <map>\n')
        self.write("layers/linear.cpp", '#include "layers/linear.h"\n')
        self.expect_clean()

    def test_tree_without_parts_is_refused(self):
        self.write("CMakeLists.txt", "project(x)\n")
        done = subprocess.run([sys.executable, str(SCRIPT), str(self.root)], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no add_part line", done.stderr)

    def test_include_against_the_order_is_refused(self):
        self.write("core/bad.cpp", '#include "core/tensor.h"\n#include "core/ops/gemm.h"\n')
        self.expect_problem("core/bad.cpp:2", '"core/ops/gemm.h"', "core may include only core")

    def test_commented_include_counts_for_nothing(self):
        self.write("core/good.cpp", '// #include "core/ops/gemm.h"\n/*\n#include <mpi.h>\n*/\n')
        self.expect_clean()

    def test_dependencies_continue_over_lines(self):
        self.write("layers/good.cpp", '#include "core/ops/gemm.h"\n')
        self.expect_clean()

    def test_dependency_on_a_later_part_is_refused(self):
        self.write("CMakeLists.txt", "add_part(core DEPENDS core/ops)\n"
                                     "add_part(core/ops DEPENDS core)\n")
        self.expect_problem("CMakeLists.txt:1", "core depends on core/ops", "acyclic")

    def test_folder_without_add_part_is_refused(self):
        self.write("core/deep/x.cpp", "int x;\n")
        self.expect_problem("core/deep/x.cpp:1", "no add_part line")

    def test_unknown_project_header_is_refused(self):
        self.write("core/bad.cpp", '#include "tensor.h"\n')
        self.expect_problem("core/bad.cpp:1", '"tensor.h" is no file of the project')

    def test_library_header_needs_its_library(self):
        self.write("core/ops/good.cpp", "#include <cblas.h>\n")
        self.write("layers/good.cpp", "#include <fmt/format.h>\n")
        self.write("core/bad.cpp", "#include <fmt/format.h>\n")
        self.expect_problem("core/bad.cpp:1", "<fmt/format.h>", "core does not use ferry_fmt")

    def test_test_may_include_what_its_subject_may(self):
        self.write("layers/linear.h", "#pragma once\n")
        self.write("tests/layers/good_test.cpp", '#include "core/ops/gemm.h"\n'
                                                 "#include <gtest/gtest.h>\n")
        self.write("tests/core/bad_test.cpp", '#include "layers/linear.h"\n')
        self.expect_problem("tests/core/bad_test.cpp:1", "layers/linear.h")

    def test_support_brings_no_forbidden_include_into_a_test(self):
        self.write("tests/support/ops.h", '#pragma once\n#include "core/ops/gemm.h"\n')
        self.write("tests/layers/good_test.cpp", '#include "tests/support/ops.h"\n')
        self.expect_clean()
        self.write("tests/core/bad_test.cpp", '\n#include "tests/support/ops.h"\n')
        self.expect_problem("tests/core/bad_test.cpp:2", "through tests/support/ops.h")

    def test_test_may_include_headers_of_its_folder(self):
        self.write("tests/core/fixture.h", '#pragma once\n#include "core/tensor.h"\n')
        self.write("tests/core/good_test.cpp", '#include "tests/core/fixture.h"\n')
        self.write("tests/layers/bad_test.cpp", '#include "tests/core/fixture.h"\n')
        self.expect_problem("tests/layers/bad_test.cpp:1", "tests/core/fixture.h")

    def test_cuda_call_outside_cuda_files_is_refused(self):
        self.write("core/bad.cpp", "int f() {\n  return cudaMalloc(0, 0);\n}\n")
        self.expect_problem("core/bad.cpp:2", "CUDA code belongs in")

    def test_cuda_header_outside_cuda_files_is_refused(self):
        self.write("core/bad.h", "#pragma once\n#include <cuda_runtime.h>\n")
        self.expect_problem("core/bad.h:2", "CUDA code belongs in")

    def test_profiling_outside_cuda_files_is_refused(self):
        self.write("core/bad.cpp",
                   "#include <cupti.h>\nint f() {\n  return cuptiActivityFlushAll(0);\n}\n")
        self.expect_problem("core/bad.cpp:1", "CUDA code belongs in")

    def test_cuda_in_its_own_files_is_allowed(self):
        for name in ("device_cuda.cpp", "kernel.cu", "kernel_device.cuh", "nccl_group.cpp",
                     "cupti_trace.cpp"):
            pragma = "#pragma once\n" if name.endswith(".cuh") else ""
            self.write(f"core/{name}", pragma + "#include <cuda_runtime.h>\n")
        self.write("tests/core/device_cuda_test.cpp", "#include <cuda_runtime.h>\n")
        self.expect_clean()

    def test_cuda_word_in_comment_or_string_is_allowed(self):
        self.write("core/good.cpp", '// cudaMalloc\nconst char* s = "cudaMalloc <<<";\n'
                                    "bool cuda_available();\n")
        self.expect_clean()

    def test_cuda_reached_through_a_header_is_refused(self):
        self.write("core/device_cuda.h", "#pragma once\n#include <cuda_runtime.h>\n")
        self.write("core/bad.cpp", '\n#include "core/device_cuda.h"\n')
        self.expect_problem("core/bad.cpp:2", "reaches the CUDA code of core/device_cuda.h")

    def test_conditional_is_refused(self):
        self.write("core/bad.cpp", "\n  # ifdef X\n#endif\n")
        self.expect_problem("core/bad.cpp:2", "scripts/conditionals.txt")

    def test_conditional_with_a_reason_is_allowed(self):
        self.write("core/good.cpp", "#if X\n#endif\n")
        self.write("scripts/conditionals.txt", "# comment\n\ncore/good.cpp: the compiler's flag\n")
        self.expect_clean()

    def test_exception_without_reason_is_refused(self):
        self.write("core/good.cpp", "#if X\n#endif\n")
        self.write("scripts/conditionals.txt", "core/good.cpp:\n")
        self.expect_problem("scripts/conditionals.txt:1", "has no reason")

    def test_exception_that_nothing_needs_is_refused(self):
        self.write("scripts/untested.txt", "# comment\ncore/gone.cpp: was moved\n")
        self.expect_problem("scripts/untested.txt:2", "remove the line")

    def test_own_header_comes_first(self):
        self.write("core/x.h", "#pragma once\n")
        self.write("core/x.cpp", '#include "core/tensor.h"\n#include "core/x.h"\n')
        self.expect_problem("core/x.cpp:2", "comes first")

    def test_own_header_comes_first_in_a_test(self):
        self.write("core/x.h", "#pragma once\n")
        self.write("tests/core/x_test.cpp", '#include <map>\n#include "core/x.h"\n')
        self.expect_problem("tests/core/x_test.cpp:2", "comes first")

    def test_header_begins_with_pragma_once(self):
        self.write("core/bad.h", "// What it is for.\nint x;\n")
        self.expect_problem("core/bad.h:1", "#pragma once")

    def test_using_namespace_in_a_header_is_refused(self):
        self.write("core/bad.h", "#pragma once\nusing namespace std;\n")
        self.write("core/good.cpp", "using namespace std;\n")
        self.expect_problem("core/bad.h:2", "using namespace")

    def test_long_file_is_refused(self):
        self.write("tests/core/long_test.cpp", "int x;\n" * 600)
        self.expect_clean()
        self.write("tests/core/long_test.cpp", "int x;\n" * 601)
        self.expect_problem("tests/core/long_test.cpp:601", "601 lines")

    def test_source_over_60_lines_needs_a_test(self):
        self.write("core/short.cpp", "int x;\n" * 60)
        self.expect_clean()
        self.write("core/short.cpp", "int x;\n" * 61)
        self.expect_problem("core/short.cpp:1", "tests/core/short_test.cpp")
        self.write("tests/core/short_test.cpp", "int x;\n")
        self.expect_clean()

    def test_backends_share_the_test_of_their_operation(self):
        self.write("core/ops/norm_cpu.cpp", "int x;\n" * 61)
        self.write("core/ops/norm_cuda.cu", "int x;\n" * 61)
        self.write("tests/core/ops/norm_test.cpp", "int x;\n")
        self.expect_clean()

    def test_mpi_test_counts_as_test(self):
        self.write("core/group.cpp", "int x;\n" * 61)
        self.write("tests/core/group_mpi_test.cpp", "int x;\n")
        self.expect_clean()

    def test_header_without_source_needs_a_test_for_its_code(self):
        self.write("core/table.h", "#pragma once\n" + "// words\n" * 100 + "int x;\n" * 60)
        self.expect_problem("core/table.h:1", "tests/core/table_test.cpp")
        self.write("core/table.h", "#pragma once\n" + "// words\n" * 100 + "int x;\n" * 59)
        self.expect_clean()

    def test_untested_source_with_a_reason_is_allowed(self):
        self.write("core/long.cpp", "int x;\n" * 61)
        self.write("scripts/untested.txt", "core/long.cpp: only a table\n")
        self.expect_clean()

    def test_folder_name_that_says_nothing_is_refused(self):
        self.write("scripts/utils/x.py", "x = 1\n")
        self.expect_problem("scripts/utils/x.py:1", "'utils'")

    def test_file_name_that_says_nothing_is_refused(self):
        self.write("core/tensor_helper.cpp", "int x;\n")
        self.expect_problem("core/tensor_helper.cpp:1", "'helper'")

    def test_text_that_is_not_ascii_is_refused(self):
        self.write("core/bad.cpp", "int x;\n// caf\u00e9\n")
        self.expect_problem("core/bad.cpp:2", "not ASCII")

    def test_built_and_hidden_folders_are_not_read(self):
        for folder in ("build", "build-mine", "runs", "data", ".cache"):
            self.write(f"{folder}/bad.cpp", "#ifdef X\n#endif\n")
        self.expect_clean()


if __name__ == "__main__":
    unittest.main()

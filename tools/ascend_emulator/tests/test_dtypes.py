"""Contracts against the dtypes that CANN's sources list (tools/read_cann_dtypes.py)."""

import read_cann_dtypes
import yaml

# What contracts allow beyond the tables that count, and why.
KNOWN = {
    "aclnnExpm1 out": "float64: the tables are of the input, whose result may be cast",
    "aclnnLeTensor out": "uint32, uint64: of a table whose name has 910 alone, which Atlas A2 reads as well",
    "aclnnSign in": "bfloat16: allowed in code on Atlas A2",
    "aclop:OneHot in": "the tables are of x, these of on_value",
    "aclop:ArgMin out": "int32: of y, the tables are of x",
    "aclop:Sort out": "int32, int64: of y2, the tables are of x",
}


def test_contracts_allow_what_the_sources_list() -> None:
    table = yaml.safe_load(read_cann_dtypes.TABLE.read_text(encoding="utf-8"))
    looser, _ = read_cann_dtypes.differences(table["dtypes"])
    assert {name: dtypes for name, dtypes in looser.items() if name not in KNOWN} == {}
    assert looser.keys() == KNOWN.keys()
    assert len(table["dtypes"]) > 190 and len(table["sources"]) == 3


def test_tables_for_atlas_a2_are_taken() -> None:
    text = """
    static const std::initializer_list<op::DataType> ASCEND910_DTYPE_SUPPORT_LIST = {op::DataType::DT_DOUBLE};
    static const std::initializer_list<op::DataType> ASCEND910B_DTYPE_SUPPORT_LIST = {
        op::DataType::DT_FLOAT, op::DataType::DT_BF16, op::DataType::DT_COMPLEX64};
    static const std::initializer_list<op::DataType> DTYPE_SUPPORT_LIST_950 = {op::DataType::DT_INT8};
    static const std::initializer_list<op::DataType> AICORE_LIST_910B = {op::DataType::DT_INT32};
    static const std::initializer_list<DataType> OUT_LIST = {DataType::DT_BOOL};
    """
    found = read_cann_dtypes.tables_of(text, is_function=True)
    assert found == {"in": {"float32", "bfloat16"}, "out": {"bool"}}
    assert read_cann_dtypes.tables_of(text, is_function=False)["in"] == {"float32", "bfloat16", "int32"}

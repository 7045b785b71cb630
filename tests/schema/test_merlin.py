"""The older tools' schema files: every form they come in, and what we write read back exactly."""

import base64
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed import ColumnSchema, Domain, Schema
from tabfeed.errors import DuplicateColumnError, SchemaError
from tabfeed.schema.merlin import read_merlin_json, read_pbtxt, write_merlin_json, write_pbtxt
from tests.schemas import schemas

STRUCT = "type.googleapis.com/google.protobuf.Struct"

# The three forms of one schema, as files of different years hold it. The metadata of the first
# column is {"num_buckets": null, "embedding_sizes": {"cardinality": 10, "dimension": 16},
# "dtype_item_size": 32, "is_list": false, "is_ragged": false}.
BYTES_FORM = r"""
feature {
  name: "user"
  type: INT
  int_domain {
    name: "user"
    max: 9
    is_categorical: true
  }
  annotation {
    tag: "user_id"
    tag: "categorical"
    extra_metadata {
      type_url: "type.googleapis.com/google.protobuf.Struct"
      value: "\n\021\n\013num_buckets\022\002\010\000\nG\n\017embedding_sizes\0224*2\n\030\n\013cardinality\022\t\021\000\000\000\000\000\000$@\n\026\n\tdimension\022\t\021\000\000\000\000\000\0000@\n\034\n\017dtype_item_size\022\t\021\000\000\000\000\000\000@@\n\r\n\007is_list\022\002 \000\n\017\n\tis_ragged\022\002 \000"
    }
  }
}
feature {
  name: "genres"
  value_count {
    min: 1
    max: 4
  }
  type: INT
  annotation {
    tag: "list"
  }
}
feature {
  name: "price"
  type: FLOAT
  float_domain {
    min: -1.5
    max: 2.5
  }
}
"""  # noqa: E501
SPELLED_OUT_FORM = """
# written by a newer version
feature {
  name: "user" type: INT
  int_domain { name: "user" max: 9 is_categorical: true }
  annotation {
    tag: "categorical" tag: "id" tag: "user"
    extra_metadata {
      [type.googleapis.com/google.protobuf.Struct] {
        fields { key: "_dims" value { list_value { } } }
        fields { key: "dtype_item_size" value { number_value: 32.0 } }
        fields {
          key: "embedding_sizes"
          value { struct_value {
            fields { key: "cardinality" value { number_value: 10.0 } }
            fields { key: "dimension" value { number_value: 16.0 } }
          } }
        }
        fields { key: "is_list" value { bool_value: false } }
        fields { key: "is_ragged" value { bool_value: false } }
        fields { key: "num_buckets" value { null_value: NULL_VALUE } }
      }
    }
  }
}
feature {
  name: "genres" value_count { min: 1 max: 4 } type: INT
  annotation {
    tag: "list"
    extra_metadata {
      [type.googleapis.com/google.protobuf.Struct] {
        fields { key: "_dims" value { list_value {
          values { list_value { values { number_value: 0.0 } values { null_value: NULL_VALUE } } }
          values { list_value { values { number_value: 1.0 } values { number_value: 4.0 } } }
        } } }
        fields { key: "dtype_item_size" value { number_value: 64.0 } }
        fields { key: "is_list" value { bool_value: true } }
        fields { key: "is_ragged" value { bool_value: true } }
      }
    }
  }
}
feature { name: "price" type: FLOAT float_domain { min: -1.5 max: 2.5 } }
"""
JSON_FORM = json.dumps(
    {
        "feature": [
            {
                "name": "user",
                "type": "INT",
                "intDomain": {"name": "user", "max": "9", "isCategorical": True},
                "annotation": {
                    "tag": ["categorical", "id", "user"],
                    "extraMetadata": [
                        {
                            "num_buckets": None,
                            "embedding_sizes": {"dimension": 16.0, "cardinality": 10.0},
                            "dtype_item_size": 32.0,
                            "_dims": [],
                            "is_ragged": False,
                            "is_list": False,
                        }
                    ],
                },
            },
            {
                "name": "genres",
                "valueCount": {"min": "1", "max": "4"},
                "type": "INT",
                "annotation": {"tag": ["list"]},
            },
            {
                "name": "price",
                "type": "FLOAT",
                "floatDomain": {"name": None, "min": -1.5, "max": 2.5},
            },
        ]
    }
)
EXPECTED = Schema(
    [
        ColumnSchema(
            "user",
            "int32",
            tags=["user", "id", "categorical"],
            properties={"num_buckets": None},
            domain=Domain(0, 9, "user"),
            embedding_size=(10, 16),
        ),
        ColumnSchema("genres", "list<int64>", tags="list", value_count=(1, 4)),
        ColumnSchema("price", "float64", domain=Domain(-1.5, 2.5)),
    ]
)


@pytest.mark.parametrize("text", [BYTES_FORM, SPELLED_OUT_FORM], ids=["bytes", "spelled out"])
def test_a_text_file(text: str) -> None:
    assert read_pbtxt(text) == EXPECTED


def test_a_json_file() -> None:
    assert read_merlin_json(JSON_FORM) == EXPECTED


def one(feature: str) -> ColumnSchema:
    return read_pbtxt(f'feature {{ name: "x" {feature} }}').first


@pytest.mark.parametrize(
    ("feature", "dtype"),
    [
        ("", None),
        ("type: TYPE_UNKNOWN", None),
        ("type: INT", pa.int64()),
        ("type: FLOAT", pa.float64()),
        ("type: BYTES", pa.string()),
        ("type: 2", pa.int64()),
        ("type: INT value_count { }", pa.list_(pa.int64())),
        ("type: INT value_count { min: 2 }", pa.list_(pa.int64())),
        ("type: INT value_counts {value_count {} value_count {}}", pa.list_(pa.list_(pa.int64()))),
        ("type: FLOAT shape { }", pa.float64()),
        ("type: FLOAT shape { dim { size: 1 } }", pa.float64()),
        ("type: FLOAT shape { dim { size: 3 } dim { size: 2 } }", pa.list_(pa.list_(pa.float64()))),
    ],
)  # fmt: skip
def test_types(feature: str, dtype: pa.DataType | None) -> None:
    assert one(feature) == ColumnSchema("x", dtype, value_count=one(feature).value_count)


@pytest.mark.parametrize(
    ("kind", "bits", "dtype"),
    [
        ("INT", 8, "int8"), ("INT", 16, "int16"), ("INT", 32, "int32"), ("INT", 64, "int64"),
        ("FLOAT", 16, "float16"), ("FLOAT", 32, "float32"), ("FLOAT", 64, "float64"),
        ("INT", 7, "int64"), ("FLOAT", None, "float64"),
    ],
)  # fmt: skip
def test_sizes_in_bits(kind: str, bits: int | None, dtype: str) -> None:
    column = with_metadata({"dtype_item_size": bits}, type=kind)
    assert column == ColumnSchema("x", dtype)


def with_metadata(metadata: Any, **feature: Any) -> ColumnSchema:
    annotation = {"annotation": {"extraMetadata": [metadata]}}
    return read_merlin_json(json.dumps({"feature": [{"name": "x", **feature, **annotation}]})).first


@pytest.mark.parametrize(
    ("feature", "metadata", "count"),
    [
        ({"valueCount": {}}, {}, None),
        ({"valueCount": {"min": "2"}}, {}, (2, None)),
        ({"valueCount": {"max": 3}}, {}, (0, 3)),
        ({"valueCount": {"min": 4, "max": 4}}, {}, (4, 4)),
        ({"valueCount": {"min": 5, "max": 4}}, {}, (5, None)),
        ({"valueCount": {"max": "4"}}, {"is_list": True, "is_ragged": False}, (4, 4)),
        ({"valueCount": {"min": "4"}}, {"is_list": True, "is_ragged": False}, (4, 4)),
        ({}, {"is_list": True, "is_ragged": True}, None),
        ({}, {"_dims": [[0, None], 8]}, (8, 8)),
        ({}, {"_dims": [[0.0, None], [1.0, 4.0]]}, (1, 4)),
        ({}, {"_dims": [[0, None], [0, None]]}, None),
        ({"valueCount": {"min": 1, "max": 2}}, {"_dims": [[0, None], [1, 4]]}, (1, 4)),
        ({"shape": {"dim": [{"size": "7"}]}}, {}, (7, 7)),
    ],
)
def test_lists_and_their_counts(feature: Any, metadata: Any, count: Any) -> None:
    column = with_metadata(metadata, type="INT", **feature)
    assert column == ColumnSchema("x", "list<int64>", value_count=count)


def test_lists_of_lists() -> None:
    column = with_metadata(
        {"_dims": [[0, None], 8, [0, None]], "dtype_item_size": 32}, type="FLOAT"
    )
    assert column == ColumnSchema("x", "list<list<float>>", value_count=(8, 8))


def test_what_says_it_is_no_list_is_none() -> None:
    assert with_metadata({"is_list": False}, type="INT", valueCount={"max": 4}).dtype == pa.int64()


def test_a_list_of_an_unknown_type_is_remembered() -> None:
    column = with_metadata({"is_list": True, "is_ragged": True})
    assert column == ColumnSchema("x", properties={"is_list": True})
    again = read_pbtxt(write_pbtxt(Schema([column])))
    assert again.first == column


@pytest.mark.parametrize(
    ("feature", "domain"),
    [
        ("int_domain { min: 1 max: 5 }", Domain(1, 5)),
        ("int_domain { max: 5 }", Domain(0, 5)),
        ("int_domain { min: -5 }", Domain(-5)),
        ('int_domain { name: "shop" }', Domain(name="shop")),
        ("int_domain { }", None),
        (f"int_domain {{ min: {-(2**63)} max: {2**63 - 1} }}", Domain(-(2**63), 2**63 - 1)),
        ("float_domain { max: 5.5 }", Domain(0.0, 5.5)),
        ("float_domain { min: -inf max: inf }", None),
    ],
)  # fmt: skip
def test_domains(feature: str, domain: Domain | None) -> None:
    assert one(feature).domain == domain


def test_a_domain_beside_the_features_is_found_by_its_name() -> None:
    schema = read_pbtxt(
        'feature { name: "a" type: INT domain: "shops" } int_domain { name: "shops" max: 7 }'
        'feature { name: "b" domain: "words" }'
        'string_domain { name: "words" value: "x" value: "y" }'
        'feature { name: "c" domain: "nowhere" }'
    )
    assert schema["a"].domain == Domain(0, 7, "shops")
    assert schema["b"].properties == {"string_domain": {"name": "words", "value": ["x", "y"]}}
    assert schema["c"].properties == {"domain": "nowhere"}


def test_categorical_by_domain() -> None:
    assert one("int_domain { max: 5 is_categorical: true }").tags == ("categorical",)
    assert one("int_domain { max: 5 is_categorical: false }").tags == ()
    both = one('int_domain { max: 5 is_categorical: true } annotation { tag: "continuous" }')
    assert both.tags == ("continuous",)


def test_of_tags_that_exclude_each_other_the_later_wins() -> None:
    column = one('annotation { tag: "categorical" tag: "continuous" tag: "mine" }')
    assert column.tags == ("continuous", "mine")


def test_what_is_not_understood_is_kept() -> None:
    column = one(
        "type: STRUCT presence { min_fraction: 1.0 min_count: 1 } lifecycle_stage: BETA "
        'deprecated: true annotation { comment: "why" comment: "not" } '
        "float_domain { max: 2 disallow_nan: true }"
        "skew_comparator { infinity_norm { threshold: inf } }"
    )
    assert column.properties == {
        "type": "STRUCT",
        "presence": {"min_fraction": 1.0, "min_count": 1},
        "lifecycle_stage": "BETA",
        "deprecated": True,
        "comment": ["why", "not"],
        "float_domain": {"disallow_nan": True},
        "skew_comparator": {"infinity_norm": {"threshold": "inf"}},
    }
    assert column.domain == Domain(0.0, 2.0)
    schema = Schema([column])
    assert read_pbtxt(write_pbtxt(schema)) == read_merlin_json(write_merlin_json(schema)) == schema


def test_the_camels_of_json_become_the_names_of_the_text() -> None:
    text = (
        '{"feature": [{"name": "x", "lifecycleStage": "BETA", "stringDomain": {"value": ["a"]}}]}'
    )
    assert read_merlin_json(text).first.properties == {
        "lifecycle_stage": "BETA",
        "string_domain": {"value": ["a"]},
    }


def test_the_names_of_properties_are_left_alone() -> None:
    assert with_metadata({"camelCase": {"innerKey": 1}}).properties == {
        "camelCase": {"innerKey": 1}
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"answer": 42},
        {"@type": STRUCT, "value": {"answer": 42}},
        {
            "typeUrl": STRUCT,
            "value": base64.b64encode(
                b"\n\x13\n\x06answer\x12\x09\x11\0\0\0\0\0\0\x45\x40"
            ).decode(),
        },
    ],
)
def test_the_forms_of_metadata_in_json(entry: Any) -> None:
    assert with_metadata(entry).properties == {"answer": 42}


def test_numbers_json_cannot_hold_become_text() -> None:
    text = (
        '{"feature": [{"name": "x", "annotation": {"extraMetadata": [{"a": NaN, "b": [1e999]}]}}]}'
    )
    assert read_merlin_json(text).first.properties == {"a": "NaN", "b": ["1e999"]}


def test_several_entries_of_metadata_are_one() -> None:
    text = '{"feature": [{"name": "x", "annotation": {"extraMetadata": [{"a": 1}, {"b": 2}]}}]}'
    assert read_merlin_json(text).first.properties == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "entry",
    [
        'type_url: "type.googleapis.com/google.protobuf.Struct" value: "\\n\\377"',
        'type_url: "type.googleapis.com/other.Type" value: "\\001\\002"',
        'type_url: "type.googleapis.com/google.protobuf.Struct" value: 3',
        "[type.googleapis.com/google.protobuf.Struct]: 3",
        "[type.googleapis.com/google.protobuf.Struct] { fields: 3 }",
        '[type.googleapis.com/google.protobuf.Struct] { fields { key: "a" value: 3 } }',
        "[type.googleapis.com/other.Type] { a: 1 }",
    ],
)
def test_metadata_of_another_kind_does_not_hide_the_rest(entry: str) -> None:
    column = one(f'type: INT annotation {{ tag: "id" extra_metadata {{ {entry} }} }}')
    assert (column.dtype, column.tags) == (pa.int64(), ("id",))
    assert set(column.properties) == {"extra_metadata"}
    json.dumps(dict(column.properties))


@pytest.mark.parametrize(
    "entry", [3, "x", None, {"typeUrl": STRUCT, "value": "!"}, {"typeUrl": STRUCT, "value": 3}]
)
def test_damaged_metadata_in_json_does_not_hide_the_rest(entry: Any) -> None:
    assert with_metadata(entry, type="INT").dtype == pa.int64()


@pytest.mark.parametrize(
    "sizes",
    [{"cardinality": 3}, {"cardinality": "x", "dimension": 2}, 7, {"a": 1, "b": 2}, None],
)
def test_embedding_sizes_of_another_form_stay_a_property(sizes: Any) -> None:
    column = with_metadata({"embedding_sizes": sizes})
    assert column.embedding_size is None
    assert column.properties == {"embedding_sizes": sizes}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("feature {", "expected '}' at line 1"),
        ('{"feature": []}', "not protobuf text"),
        ("hello: 1", "schema.pbtxt has no 'feature', but hello"),
        ("feature: 3", "a feature is 3"),
        ("feature { type: INT }", "name must be a non-empty string"),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_pbtxt(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schema.json is not JSON"),
        ("feature { }", "schema.json is not JSON"),
        ("[1]", "not an object"),
        ('{"columns": []}', "schema.json has no 'feature', but columns"),
        ('{"feature": [3]}', "a feature is 3"),
        ('{"feature": [{"type": "INT"}]}', "name must be a non-empty string"),
        ('{"feature": [{"name": 3}]}', "name must be a non-empty string"),
    ],
)
def test_json_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_merlin_json(text)


@pytest.mark.parametrize("levels", [490, 700, 950, 100_000])
def test_json_nested_deep_is_refused_or_read(levels: int) -> None:
    text = '{"x": ' + "[" * levels + "]" * levels + ', "feature": []}'
    try:  # how deep Python can go differs by its version
        assert read_merlin_json(text) == Schema()
    except SchemaError as e:
        assert "schema.json is" in str(e)
    else:
        assert levels < 1000


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(DuplicateColumnError, match="'a' appears twice"):
        read_pbtxt('feature { name: "a" } feature { name: "a" }')


def test_nothing_is_the_empty_schema() -> None:
    assert read_pbtxt("# nothing\n") == read_merlin_json("{}") == Schema()
    assert (
        read_pbtxt(write_pbtxt(Schema()))
        == read_merlin_json(write_merlin_json(Schema()))
        == Schema()
    )


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(
        st.sampled_from(["min", "max", "name", "tag", "dim", "size", "value", "value_count",
                         "extraMetadata", "is_list", "is_ragged", "_dims", "embedding_sizes",
                         "dtype_item_size", "tabfeed", "is_categorical"]), x, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from([
            *("type", "valueCount", "valueCounts", "shape", "intDomain", "floatDomain"),
            *("domain", "annotation", "presence", "extraMetadata"),
        ]),
        _ODD,
    )
)  # fmt: skip
def test_no_feature_does_worse_than_a_schema_error(feature: dict[str, Any]) -> None:
    try:
        schema = read_merlin_json(json.dumps({"feature": [{**feature, "name": "x"}]}))
    except SchemaError:
        return
    assert read_pbtxt(write_pbtxt(schema)) == schema


# -- writing ------------------------------------------------------------------------


@given(schemas())
def test_what_is_written_is_read_back_exactly(schema: Schema) -> None:
    assert read_pbtxt(write_pbtxt(schema)) == schema
    assert read_merlin_json(write_merlin_json(schema)) == schema


@pytest.mark.parametrize(
    "dtype",
    [
        "uint8", "bool", "binary", "large_string", "date32[day]", "timestamp[us, tz=UTC]",
        "dictionary<string, int32>", "fixed_size_list<float, 8>", "large_list<int64>",
        "list<fixed_size_list<float, 2>>", "struct<a: int8>", "list<int64 not null>",
        "map<string, int64>",
    ],
)  # fmt: skip
def test_types_the_format_has_no_word_for_are_read_back(dtype: str) -> None:
    schema = Schema([ColumnSchema("x", dtype, nullable=False)])
    assert read_pbtxt(write_pbtxt(schema)) == schema
    assert read_merlin_json(write_merlin_json(schema)) == schema


def test_numbers_a_double_cannot_hold_are_read_back() -> None:
    schema = Schema([ColumnSchema("x", properties={"big": 2**63 + 1, "list": [2**60 + 1]})])
    assert read_pbtxt(write_pbtxt(schema)).first.properties["big"] == 2**63 + 1
    assert read_pbtxt(write_pbtxt(schema)) == schema


def test_a_bound_single_precision_cannot_hold_is_ours_to_keep() -> None:
    schema = Schema([ColumnSchema("x", "double", domain=Domain(-1e300, 2.5))])
    (feature,) = json.loads(write_merlin_json(schema))["feature"]
    assert feature["floatDomain"] == {"max": 2.5}
    assert read_merlin_json(write_merlin_json(schema)) == read_pbtxt(write_pbtxt(schema)) == schema


def test_properties_with_the_names_of_the_format_are_read_back() -> None:
    names = [
        "is_list",
        "is_ragged",
        "_dims",
        "dtype_item_size",
        "embedding_sizes",
        "tabfeed",
        "type",
    ]
    schema = Schema(
        [
            ColumnSchema("x", "int64", properties={n: "mine" for n in names}),
            ColumnSchema("y", "list<int8>", properties={"is_list": False}, embedding_size=(3, 4)),
        ]
    )
    assert read_pbtxt(write_pbtxt(schema)) == schema
    assert read_merlin_json(write_merlin_json(schema)) == schema


def test_a_column_the_format_can_say_needs_no_word_of_ours() -> None:
    assert "tabfeed" not in write_pbtxt(EXPECTED)
    assert "tabfeed" not in write_merlin_json(EXPECTED)


def test_the_text_file_we_write() -> None:
    schema = Schema([ColumnSchema("g", "list<int32>", tags="item_id", value_count=(1, 4))])
    assert write_pbtxt(schema) == (
        'feature {\n  name: "g"\n  value_count {\n    min: 1\n    max: 4\n  }\n  type: INT\n'
        '  annotation {\n    tag: "id"\n    tag: "item"\n    extra_metadata {\n'
        "      [type.googleapis.com/google.protobuf.Struct] {\n"
        '        fields {\n          key: "is_list"\n          value {\n'
        "            bool_value: true\n          }\n        }\n"
        '        fields {\n          key: "is_ragged"\n          value {\n'
        "            bool_value: true\n          }\n        }\n"
        '        fields {\n          key: "_dims"\n          value {\n'
        "            list_value {\n"
        "              values {\n                list_value {\n"
        "                  values {\n                    number_value: 0.0\n                  }\n"
        "                  values {\n                    null_value: NULL_VALUE\n"
        "                  }\n                }\n              }\n"
        "              values {\n                list_value {\n"
        "                  values {\n                    number_value: 1.0\n                  }\n"
        "                  values {\n                    number_value: 4.0\n"
        "                  }\n                }\n              }\n"
        "            }\n          }\n        }\n"
        '        fields {\n          key: "dtype_item_size"\n          value {\n'
        "            number_value: 32.0\n          }\n        }\n"
        "      }\n    }\n  }\n}\n"
    )


def test_the_json_file_we_write() -> None:
    schema = Schema(
        [
            ColumnSchema(
                "u", "int64", tags="categorical", domain=Domain(0, 9), embedding_size=(10, 16)
            ),
            ColumnSchema("v", "fixed_size_list<float, 8>", domain=Domain(-1, 1)),
        ]
    )
    assert json.loads(write_merlin_json(schema)) == {
        "feature": [
            {
                "name": "u",
                "type": "INT",
                "intDomain": {"min": "0", "max": "9", "isCategorical": True},
                "annotation": {
                    "tag": ["categorical"],
                    "extraMetadata": [
                        {
                            "embedding_sizes": {"cardinality": 10, "dimension": 16},
                            "is_list": False,
                            "is_ragged": False,
                            "_dims": [],
                            "dtype_item_size": 64,
                        }
                    ],
                },
            },
            {
                "name": "v",
                "valueCount": {"min": "8", "max": "8"},
                "type": "FLOAT",
                "floatDomain": {"min": -1.0, "max": 1.0},
                "annotation": {
                    "tag": [],
                    "extraMetadata": [
                        {
                            "is_list": True,
                            "is_ragged": False,
                            "_dims": [[0, None], 8],
                            "dtype_item_size": 32,
                            "tabfeed": '{"dtype": "fixed_size_list<float, 8>"}',
                        }
                    ],
                },
            },
        ]
    }


@pytest.mark.parametrize(
    "value", [{1}, math.nan, b"x", 10**400], ids=["set", "nan", "bytes", "huge"]
)
def test_properties_that_cannot_be_written_are_refused_by_name(value: Any) -> None:
    schema = Schema([ColumnSchema("odd", properties={"k": value})])
    for write in (write_pbtxt, write_merlin_json):
        with pytest.raises(SchemaError, match="properties of column 'odd' cannot be saved"):
            write(schema)


def test_a_damaged_word_of_ours_says_what_to_do() -> None:
    for ours in ("not json", '{"dtype": "nope"}', "[1]", 3):
        with pytest.raises(SchemaError, match="property 'tabfeed' of column 'x' is damaged"):
            with_metadata({"tabfeed": ours})

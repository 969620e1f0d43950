"""Convert the schemas of tables for Spark. Spark reads and writes no table itself: its tasks do, with Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


def spark_schema(contract: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's."""
    return from_arrow_schema(contract)

"""The way into the JVM behind PySpark: nothing else in spark_sink imports py4j or such attributes.

The results are py4j's proxies of Java objects. They have no types, so they are Any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from slackwater.worker_errors import encoded_errors

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


def java_raised() -> type[Exception]:
    """Return the error of a call in which Java raised an exception."""
    from py4j.protocol import Py4JJavaError

    error: type[Exception] = Py4JJavaError
    return error


def jvm_of(spark: SparkSession) -> Any:
    """Return the root from which Java's packages are reached, as in jvm.java.util.ArrayList()."""
    return spark._jvm


def hadoop_conf(spark: SparkSession) -> Any:
    """Return the Hadoop configuration of the process."""
    context: Any = spark._jsc
    return context.hadoopConfiguration()


def java_exception(error: Exception) -> Any:
    """Return the Java exception of an error that is java_raised()."""
    return getattr(error, "java_exception", None)


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterable[RecordBatch]], Iterator[RecordBatch]],
    schema: str | DataType,
) -> DataFrame:
    """Return a function's result for each partition; see DataFrame.mapInArrow.

    PySpark's own method asks for pandas, which it does not use. Our errors in the function reach
    the driver whole; see worker_errors.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    def in_task(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        with encoded_errors():
            yield from function(batches)

    udf = UserDefinedFunction(in_task, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    # A name may have dots and backticks.
    quoted = (f"`{name.replace('`', '``')}`" for name in frame.columns)
    column: Any = udf(*(frame[name] for name in quoted))
    java_frame: Any = frame._jdf.mapInArrow(column._jc, False, None)
    return DataFrame(java_frame, frame.sparkSession)

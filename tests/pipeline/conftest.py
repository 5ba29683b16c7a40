"""The nsqds and the Spark session of the tests of the data source serve these, too."""

from tests.spark.conftest import broker, other, spark

__all__ = ["broker", "other", "spark"]

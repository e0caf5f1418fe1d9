"""Spark for the pipeline: Java, the session, the query, the checkpoint, the warm-up.

No decision about the pipeline is made here. Everything that reaches behind PySpark's public
interface, by py4j or by a name with an underscore, is in jvm.
"""

#!/bin/sh
# Starts what Spark on Kubernetes asks for, an executor or the driver of a SparkApplication;
# slackwater otherwise.
set -eu
case "${1:-}" in
executor)
    # Spark numbers the options of the JVM: its own, and those of spark.executor.extraJavaOptions.
    set --
    while eval "[ -n \"\${SPARK_JAVA_OPT_$#+set}\" ]"; do
        eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$#\""
    done
    # Spark copies spark.files and spark.jars into the working directory.
    cd "$(mktemp -d)"
    # Only with this master does an executor read spark.authenticate.secret.file, and that before it
    # has the driver's settings.
    exec java "$@" -Dspark.master=k8s:// \
        -Xms"${SPARK_EXECUTOR_MEMORY}" -Xmx"${SPARK_EXECUTOR_MEMORY}" \
        -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_HOME}/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "${SPARK_DRIVER_URL}" --executor-id "${SPARK_EXECUTOR_ID}" \
        --cores "${SPARK_EXECUTOR_CORES}" --app-id "${SPARK_APPLICATION_ID}" \
        --hostname "${SPARK_EXECUTOR_POD_IP}" --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID}" \
        --podName "${SPARK_EXECUTOR_POD_NAME}"
    ;;
driver)
    shift
    cd "$(mktemp -d)"
    # The program can't give jars to a JVM that runs already.
    export SPARK_DIST_CLASSPATH="${SLACKWATER_SPARK_JARS}/*"
    exec "${SPARK_HOME}/bin/spark-submit" \
        --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS}" --deploy-mode client "$@"
    ;;
*)
    exec slackwater "$@"
    ;;
esac

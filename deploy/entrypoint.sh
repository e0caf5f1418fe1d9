#!/bin/sh
# Starts an executor if Spark on Kubernetes asks for one, slackwater otherwise.
set -eu
if [ "${1:-}" = executor ]; then
    shift
    exec java ${SPARK_JAVA_OPTS:-} \
        -Xms"${SPARK_EXECUTOR_MEMORY}" -Xmx"${SPARK_EXECUTOR_MEMORY}" \
        -cp "${SPARK_HOME}/jars/*:/opt/slackwater/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "${SPARK_DRIVER_URL}" --executor-id "${SPARK_EXECUTOR_ID}" \
        --cores "${SPARK_EXECUTOR_CORES}" --app-id "${SPARK_APPLICATION_ID}" \
        --hostname "${SPARK_EXECUTOR_POD_IP}" --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID}" \
        --podName "${SPARK_EXECUTOR_POD_NAME}"
fi
exec slackwater "$@"

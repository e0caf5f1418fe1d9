"""Runs the chart's pods without a cluster: an API server in memory, and a kubelet that starts each
pod as a process in namespaces of its own. For the long proofs; root has to start them."""

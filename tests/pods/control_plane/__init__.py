"""Kubernetes' own control plane for tests: etcd, API server, controllers and scheduler.

Nodes are not real: `nodes` reports pods as a kubelet would. It runs none.
"""

"""Executes a notebook in the working directory and prints it, with its outputs, as JSON.

Usage: execute.py NOTEBOOK.
"""

import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=450, kernel_name="python3").execute()
print(nbformat.writes(notebook))

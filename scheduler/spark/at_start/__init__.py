"""A folder for PYTHONPATH, whose sitecustomize Python runs as it starts."""

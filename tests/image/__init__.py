"""Builds the image without a daemon or a registry of images, and looks at what is in it."""

"""Builds the documentation site:  python -m tools.docsite [FOLDER]"""

"""Archives of user code: checked, unpacked and made importable."""

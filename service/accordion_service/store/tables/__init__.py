"""Tables, and the values of their columns."""

"""What every part of the library uses: errors, messages, options, the interface of flows."""

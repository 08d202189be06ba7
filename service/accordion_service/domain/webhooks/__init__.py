"""Messages to other programs: where they may go, when, and signed how."""

"""``python -m ticket_agent``."""

from ticket_agent.cli import main

if __name__ == "__main__":
    main()

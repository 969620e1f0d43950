"""Message logs read from the topics themselves."""

"""A job and its log as a result of Django's tasks framework."""

"""Tenure in other frameworks. Nothing here is imported unless a user imports it, and each module needs its framework.

fastapi      a lifespan that runs a worker and closes the app; a dependency that enqueues in a route's transaction
django       a backend of Django's tasks framework, an App for the project, and `manage.py tenure …`
"""

"""What each page reads from the API; one module for each part of the dashboard."""

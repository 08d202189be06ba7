"""The Python client: one method for each route, blocking and asynchronous. Of the service it
imports only the schemas and the table of job statuses.
"""

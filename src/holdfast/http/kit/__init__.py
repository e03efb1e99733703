"""The framework of all endpoints: dispatch, request, response, paging, errors, OpenAPI."""

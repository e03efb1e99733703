"""What every endpoint is made with: dispatch, request, response, paging, errors, OpenAPI."""

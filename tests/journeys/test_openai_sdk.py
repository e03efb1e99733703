"""The official OpenAI client against our listing and our errors."""

from __future__ import annotations

import openai
import pytest
import trio

from .service_process import Service


async def test_the_openai_client_lists_and_retrieves_models(shared_service: Service) -> None:
    with trio.fail_after(60):
        async with openai.AsyncOpenAI(base_url=f"{shared_service.url}/v1", api_key="any", max_retries=0) as client:
            listed = {model.id: model async for model in client.models.list()}
            assert {"gateway/chat-1", "studio/image-1"} <= set(listed)
            found = await client.models.retrieve("studio/image-1")
            assert (found.id, found.object, found.owned_by) == ("studio/image-1", "model", "studio")
            assert found.created > 0


async def test_the_openai_client_reads_error_codes_and_messages(shared_service: Service) -> None:
    with trio.fail_after(60):
        async with openai.AsyncOpenAI(base_url=f"{shared_service.url}/v1", api_key="any", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError) as caught:
                await client.models.retrieve("studio/nothing")
            assert caught.value.code == "model_not_found"
            assert "The model 'studio/nothing' does not exist." in caught.value.message
            assert caught.value.request_id is None or caught.value.request_id.startswith("req_")
            with pytest.raises(openai.AuthenticationError) as unknown:
                await client.get("/../v2/task/list", cast_to=object)
            assert unknown.value.code == "invalid_api_key"

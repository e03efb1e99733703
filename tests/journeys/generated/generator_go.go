// A journey by the Go client that openapi-generator generates: go run ./journey URL
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	client "github.com/GIT_USER_ID/GIT_REPO_ID"
)

const email = "go@example.com"

func must[T any](found T, _ any, fault error) T {
	if fault != nil {
		panic(fault)
	}
	return found
}

func as(token string) context.Context {
	return context.WithValue(context.Background(), client.ContextAccessToken, token)
}

func main() {
	configuration := client.NewConfiguration()
	configuration.Servers = client.ServerConfigurations{{URL: os.Args[1]}}
	api := client.NewAPIClient(configuration)
	input := map[string]any{"prompt": "a lighthouse at dusk", "width": 256, "height": 256}

	visitor := context.Background()
	sent := must(api.SignInAPI.RequestCode(visitor).CodeRequest(*client.NewCodeRequest(email)).Execute())
	proof := client.NewVerifyRequest(email, sent.OtpId, sent.GetDebugOtp())
	verified := must(api.SignInAPI.VerifyCode(visitor).VerifyRequest(*proof).Execute())
	session := as(verified.Session.Token)
	created := must(api.APIKeysAPI.CreateApiKey(session).ApiKeyRequest(*client.NewApiKeyRequest()).Execute())
	must(api.CreditAPI.Recharge(session).RechargeRequest(*client.NewRechargeRequest("1.00")).Execute())

	key := as(created.ApiKey)
	model := ""
	for _, each := range must(api.ModelsAPI.ListModels(key).Execute()).Data {
		if each.Id == "studio/image-1" {
			model = each.Id
		}
	}
	priced := must(api.ModelsAPI.Quote(key).QuoteRequest(*client.NewQuoteRequest(model, input)).Execute())
	wanted := client.NewCreateTaskRequest(model, input)
	wanted.SetQuoteId(priced.QuoteId)
	accepted := must(api.TasksAPI.CreateTask(key).CreateTaskRequest(*wanted).IdempotencyKey("one").Execute())
	task := must(api.TasksAPI.ReadTask(key, accepted.RequestId).Execute())
	for task.Status != "succeeded" && task.Status != "failed" && task.Status != "canceled" {
		time.Sleep(100 * time.Millisecond)
		task = must(api.TasksAPI.ReadTask(key, accepted.RequestId).Execute())
	}
	page := must(api.TasksAPI.ListTasks(key).Limit(10).Execute())
	totals := must(api.CreditAPI.ReadAccount(session).Execute())
	_, _, fault := api.TasksAPI.ReadTask(key, "task_none").Execute()
	var refused *client.GenericOpenAPIError
	if !errors.As(fault, &refused) {
		panic(fault)
	}
	refusal := refused.Model().(client.ErrorResponse)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"status":    task.Status,
		"outputs":   len(task.Output),
		"cost":      task.Usage.GetCostCredits(),
		"quoted":    priced.Estimate.Credits,
		"listed":    len(page.Data),
		"available": totals.AvailableBalance,
		"code":      refusal.Error.Code,
	})
}

"use strict";

// The card provider's form, in a frame of its own: it alone sees the card. What comes of a payment is on the page that
// it leads to.
const form = document.getElementById("pay");
const button = form.querySelector("button");
const place = document.getElementById("card-form");
const loading = document.getElementById("loading");
const fault = document.getElementById("pay-fault");
const NOT_LOADED = "The card provider's form did not load. Check that nothing blocks it, and load this page again.";

const tell = (text) => {
  fault.textContent = text;
  fault.hidden = !text;
};

const begin = (stripe) => {
  const { secret, kind } = form.dataset;
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "night" : "stripe";
  const elements = stripe.elements({ clientSecret: secret, appearance: { theme } });
  const element = elements.create("payment");
  let isReady = false;
  const saved = () => form.querySelector("[name=card]:checked")?.value ?? "";
  const show = () => {
    place.hidden = saved() !== "";
    button.disabled = !isReady && !saved();
  };
  element.on("ready", () => {
    isReady = true;
    loading.hidden = true;
    show();
  });
  element.on("loaderror", () => tell(NOT_LOADED));
  loading.hidden = false;
  element.mount(place);
  form.addEventListener("change", show);
  show();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    const words = button.textContent;
    button.disabled = true;
    button.textContent = "One moment…";
    tell("");
    const return_url = new URL(form.dataset.back, location.href).href;
    const chosen = saved()
      ? { clientSecret: secret, confirmParams: { return_url, payment_method: saved() } }
      : { elements, confirmParams: { return_url } };
    const result = await (kind === "setup" ? stripe.confirmSetup(chosen) : stripe.confirmPayment(chosen))
      .catch(() => ({ error: {} }));
    const why = result.error?.message ?? "The card provider does not respond.";
    tell(result.error?.type === "validation_error" ? why : `${why} ${form.dataset.after}`);
    button.textContent = words;
    button.disabled = false;
    fault.focus();
  });
};

if (window.Stripe) begin(window.Stripe(form.dataset.key));
else tell(NOT_LOADED);

// The provider's script in a customer's browser, as far as pages of Holdfast use it. The frame calls the API.
(() => {
  "use strict";
  const origin = new URL(document.currentScript.src).origin;
  const never = () => new Promise(() => {});

  function openFrame(place, parameters) {
    const frame = document.createElement("iframe");
    frame.title = "Secure payment input frame";
    frame.src = `${origin}/v3/frame#${new URLSearchParams(parameters)}`;
    Object.assign(frame.style, { border: "0", width: "100%", height: parameters.card_is_chosen ? "0" : "9rem" });
    frame.ready = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
    if (parameters.card_is_chosen) frame.hidden = true;
    place.append(frame);
    return frame;
  }
  async function ask(frame, message) {
    await frame.ready;
    const { port1, port2 } = new MessageChannel();
    const answer = new Promise((resolve) => { port1.onmessage = (event) => resolve(event.data); });
    frame.contentWindow.postMessage(message, origin, [port2]);
    return answer;
  }

  window.Stripe = (key) => {
    async function confirm(kind, { elements, clientSecret, confirmParams = {}, redirect = "always" }) {
      const secret = clientSecret ?? elements.clientSecret;
      const card = confirmParams.payment_method;
      const frame = elements?.frame ?? openFrame(document.body, { card_is_chosen: "yes" });
      const url = confirmParams.return_url;
      const { intent, error } = await ask(frame, { kind, key, secret, card, url });
      if (error) return { error };
      if (intent.next_action) {
        location.assign(intent.next_action.redirect_to_url.url);
        return never();
      }
      if (redirect === "if_required") return { [kind === "payment_intent" ? "paymentIntent" : "setupIntent"]: intent };
      const back = new URL(url);
      back.searchParams.set(kind, intent.id);
      back.searchParams.set(`${kind}_client_secret`, secret);
      back.searchParams.set("redirect_status", intent.status === "processing" ? "pending" : intent.status);
      location.assign(back);
      return never();
    }
    return {
      elements: ({ clientSecret, appearance = {} }) => {
        const made = { clientSecret, frame: null };
        made.create = () => {
          const handlers = {};
          return {
            on: (event, handler) => { handlers[event] = handler; },
            mount: (at) => {
              const place = typeof at === "string" ? document.querySelector(at) : at;
              const parameters = { secret: clientSecret, theme: appearance.theme ?? "stripe" };
              made.frame = openFrame(place, parameters);
              made.frame.ready.then(() => handlers.ready?.());
            },
          };
        };
        return made;
      },
      confirmPayment: (options) => confirm("payment_intent", options),
      confirmSetup: (options) => confirm("setup_intent", options),
    };
  };
})();

/* A page opened from the disk may not start a worker, and the search is one; without it the theme's
   whole script stops. There, and only there, a worker is a hidden frame that runs the same file. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.started = new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        frame.onload = () => resolve(this.start(frame, url));
        document.body.append(frame);
      });
    }

    start(frame, url) {
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      return new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = () => resolve(inside);
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.started.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}

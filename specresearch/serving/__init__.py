"""Serve one target and one method by OpenAI's API.

| file | part |
|---|---|
| `bridge`, `driver` | the engine in a thread of its own, and streams of what comes of requests |
| `updates` | what a step brought, as plain data |
| `detokenizer`, `logprobs` | text and log-probabilities of tokens as they come |
| `bodies`, `answers` | what clients send and get |
| `prompts`, `service` | check requests and submit them |
| `generation`, `answering` | turn what comes of them into answers |
| `app`, `gate`, `streaming`, `errors` | HTTP, and what a request must pass before it is read |
| `metrics`, `log` | what operators see |
| `server`, `build`, `settings` | the process |

To watch a request being decoded, stream it with
`"stream_options": {"include_speculation": true}`. Every choice of a chunk then has `speculation`:

- `tokens`: for each new token its `token_id`, its `text`, which add up to the text of the chunk,
  and its `position` among the drafts of its step, from 1; `null` for the target's own token.
- `trees`: for each step that the chunk holds, `token_ids`, `texts` and `parents` of all nodes (node
  0 is the last token before the step, with parent -1), and `accepted`, the nodes that became tokens
  in order.

`answers.ChunkSpeculation` is its schema. A page that the server shows can be added to the
application of `app.create_app`, and find the engine by `app.state.service`.
"""

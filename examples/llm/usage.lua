-- Puts what a request may cost, and what it did cost, into the dynamic metadata `envoy.lb`, where the rate limit filter reads
-- it. Costs are in microdollars.

-- Microdollars for a token of the prompt, and of the answer: $2.50 and $10 for a million of each.
local PROMPT, COMPLETION = 2.5, 10

-- Envoy drops a descriptor with more hits, and with it the limit.
local MOST = 1000000000

local function put(handle, name, number)
  handle:streamInfo():dynamicMetadata():set("envoy.lb", name, math.ceil(number))
end

-- The request says how long its answer may be; of several such numbers the largest counts. A prompt has at most a token for
-- each of its bytes.
function envoy_on_request(handle)
  local body = handle:body()
  local text = body and body:getBytes(0, body:length()) or ""
  local answer
  for number in text:gmatch('"max_tokens"%s*:%s*(%d+)') do
    answer = math.max(answer or 0, tonumber(number))
  end
  answer = answer or 1000
  put(handle, "most_tokens", math.min(#text + answer, MOST))
  put(handle, "most_microdollars", math.min(#text * PROMPT + answer * COMPLETION, MOST))
end

-- An error costs nothing. The last event of a stream has the usage block; it may be split between two chunks.
function envoy_on_response(handle)
  if handle:headers():get(":status") ~= "200" then
    put(handle, "tokens", 0)
    put(handle, "microdollars", 0)
    return
  end
  local tail = ""
  for chunk in handle:bodyChunks() do
    local text = tail .. chunk:getBytes(0, chunk:length())
    local prompt, completion =
      text:match('"usage"%s*:%s*{%s*"prompt_tokens"%s*:%s*(%d+)%s*,%s*"completion_tokens"%s*:%s*(%d+)%s*,')
    if completion then
      put(handle, "tokens", prompt + completion)
      put(handle, "microdollars", prompt * PROMPT + completion * COMPLETION)
    end
    tail = text:sub(-200)
  end
end

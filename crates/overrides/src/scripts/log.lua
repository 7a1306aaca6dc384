-- Logs a change and publishes it. `log` is the key of the log, `before` the version before the change. ARGV begins with the
-- version after it and the channel.
local function record(log, before, body)
  local versions = before .. '\n' .. ARGV[1] .. '\n'
  redis.call('PUBLISH', ARGV[2], 'overrides\n' .. versions .. body)
  -- `history::MAX_CHANGE` and `MAX_CHANGES`.
  redis.call('LPUSH', log, versions .. (#body > 16384 and '*' or body))
  redis.call('LTRIM', log, 0, 127)
end

-- Asks every check, unless one of them would be over its limit: then only those that would be, and the others
-- look. What is given back is given back in either case. Returns of each check what tells of its key, and 1
-- where it looked; and the time.
local NO_NUMBER = { err = 'ERR value is not an integer or out of range' }

-- Each tells of a key, and whether all was admitted, and keeps it unless it is a trial.
local judges = {}

function judges.c(key, asked, is_trial)
  local seconds, limit, hits = unpacked('<xI4I8xxxxxxxxxxxxxxxxi8', asked)
  local count = tonumber(call('GET', key) or '0')
  if not count then
    return NO_NUMBER
  end
  local after = math.max(count + hits, 0)
  if after ~= count and not is_trial then
    -- Not a number of more digits than a double has.
    -- A counter that can hold no more says so, and is left as it is.
    local counted = redis.pcall('INCRBY', key, string.format('%.0f', after - count))
    after = type(counted) == 'number' and counted or after
    if call('TTL', key) == -1 then
      call('EXPIRE', key, seconds)
    end
  end
  -- Beyond 2^62, which is over every limit, a double may be no integer of Redis.
  return math.min(is_trial == 'look' and count or after, 4611686018427387904), after <= limit
end

function judges.l(key, asked, is_trial)
  local of_log = asked_of_log(asked)
  if is_trial == 'look' then
    of_log.runs = { 0, 1 }
  end
  return ask_log(key, of_log, is_trial)
end

for letter, algorithm in pairs(algorithms) do
  judges[letter] = function(key, asked, is_trial)
    local old = call('GET', key)
    local state, seconds, admitted = algorithm(asked)(old)
    if state == false then
      return FOREIGN
    elseif state and not is_trial then
      keep(key, old, state, seconds)
    end
    return old, admitted
  end
end

local over, any_over = {}, false
for i, key in ipairs(KEYS) do
  local told, admitted = judges[ARGV[i]:sub(1, 1)](key, ARGV[i], 'trial')
  if type(told) == 'table' and told.err then
    return told
  end
  over[i] = not admitted
  any_over = any_over or over[i]
end
local all = {}
for i, key in ipairs(KEYS) do
  local asked = ARGV[i]
  local looks = any_over and not over[i] and unpacked('<i8', asked, #asked - 11) >= 0
  all[2 * i - 1] = judges[asked:sub(1, 1)](key, asked, looks and 'look')
  all[2 * i] = looks and 1 or 0
end
all[#all + 1], all[#all + 2] = now[1], now[2]
return all

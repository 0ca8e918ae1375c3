variable "name" {
  description = "The beginning of every name."
  type        = string
  default     = "cloze"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "2 to 21 small letters, digits and hyphens, a letter first."
  }
}

variable "region" {
  description = "AWS region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region's name, as eu-central-1."
  }
}

variable "vpc_id" {
  description = "The network that all of it lives in."
  type        = string

  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "An identifier that begins with vpc-."
  }
}

variable "subnet_ids" {
  description = "Private subnets with a way out (NAT), in two zones at least."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "Two subnets at least, each beginning with subnet-."
  }
}

variable "api_cidrs" {
  description = "Networks that may reach the cluster's API from outside; none: it is reached from inside the network alone."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for one in var.api_cidrs : can(cidrhost(one, 0)) && !startswith(one, "0.0.0.0/")])
    error_message = "Networks as 192.0.2.0/24, never the whole world."
  }
}

variable "kubernetes_version" {
  description = "Of EKS."
  type        = string
  default     = "1.33"

  validation {
    condition     = can(regex("^1\\.[0-9]{2}$", var.kubernetes_version))
    error_message = "A minor version, as 1.33."
  }
}

variable "gpu_instance_type" {
  description = "Nodes for training."
  type        = string
  default     = "p5.48xlarge"

  validation {
    condition     = can(regex("^(p|g)[0-9]", var.gpu_instance_type))
    error_message = "An instance type with NVIDIA GPUs: p… or g…."
  }
}

variable "gpu_nodes_max" {
  description = "The most GPU nodes at a time; the group rests at none."
  type        = number
  default     = 2

  validation {
    condition     = var.gpu_nodes_max >= 1 && var.gpu_nodes_max <= 32
    error_message = "1 to 32."
  }
}

variable "gpu_spot" {
  description = "Spot GPU nodes: cheaper, taken away with two minutes' notice (training saves and goes on elsewhere)."
  type        = bool
  default     = false
}

variable "database_class" {
  description = "Of the PostgreSQL instance."
  type        = string
  default     = "db.t4g.medium"

  validation {
    condition     = startswith(var.database_class, "db.")
    error_message = "An instance class that begins with db."
  }
}

variable "old_versions_days" {
  description = "How long replaced or deleted objects of the bucket are kept."
  type        = number
  default     = 90

  validation {
    condition     = var.old_versions_days >= 7
    error_message = "7 at least: a mistake is not noticed at once."
  }
}
